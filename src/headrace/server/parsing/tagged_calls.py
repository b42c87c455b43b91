"""The Hermes format, Qwen's too: calls between tags, with text before, between and after them.

    Let me look that up.
    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

White space next to a call is layout, not content. A block that turns out to be no call becomes
content again, tag and all, as long as nothing of it has been passed on; from then on what is wrong
ends the call, and the rest is content. Missing closing tags and surplus braces are forgiven.
"""

from __future__ import annotations

from headrace.server.parsing.call_object import CallObject
from headrace.server.parsing.calls import Calls
from headrace.server.parsing.matching import possible_start
from headrace.server.parsing.pieces import TextSink

OPENING = "<tool_call>"
CLOSING = "</tool_call>"

#: Layout behind a call's object; the surplus brace is a common slip of small models.
_LAYOUT = " \t\r\n}"


class TaggedCalls:
    """One answer's text, in; content to `content`, calls to `calls`."""

    __slots__ = (
        "_after_call",
        "_blank",
        "_call",
        "_calls",
        "_closing",
        "_content",
        "_held",
        "_raw",
        "_wrote",
    )

    def __init__(self, calls: Calls, content: TextSink) -> None:
        self._calls = calls
        self._content = content
        self._blank: list[str] = []  # white space at the end of the text so far
        self._held = ""  # the beginning of a tag, perhaps
        self._call: CallObject | None = None
        self._raw: list[str] = []  # all of the call being read, until some of it is passed on
        self._closing = False  # behind a call's object: the closing tag should come
        self._wrote = False  # whether any content has been written
        self._after_call = False  # whether the last thing but white space was a call

    def push(self, text: str) -> None:
        """Takes the next part of the text."""
        i = 0
        while i < len(text):
            if self._call is not None:
                i = self._read_call(self._call, text, i)
            elif self._closing:
                i = self._read_closing(text, i)
            else:
                i = self._read_text(text, i)

    def finish(self) -> None:
        """The text has ended: what was held back is decided now."""
        if self._call is not None:
            self._give_back()
        held, self._held = self._held, ""
        if not self._closing:
            self._write(held)
        if self._blank and not self._after_call:
            self._content("".join(self._blank))
        self._blank.clear()

    def _read_text(self, text: str, start: int) -> int:
        known = len(self._held)
        chunk = self._held + text[start:]
        self._held = ""
        tag = chunk.find(OPENING)
        if tag < 0:
            keep = possible_start(chunk, OPENING)
            self._write(chunk[: len(chunk) - keep])
            self._held = chunk[len(chunk) - keep :]
            return len(text)
        self._write(chunk[:tag])
        self._call = self._calls.new(tagged=True)
        self._raw = ["".join(self._blank), OPENING]
        self._blank.clear()
        return start + tag + len(OPENING) - known

    def _read_call(self, call: CallObject, text: str, start: int) -> int:
        end = self._calls.push(call, text, start)
        if call.started:
            self._raw.clear()
            self._after_call = True
        else:
            self._raw.append(text[start:end])
        if call.failed and not call.started:
            self._give_back()
        elif call.failed or call.done:
            self._call = None
            self._closing = call.complete
        return end

    def _read_closing(self, text: str, start: int) -> int:
        known = len(self._held)
        chunk = (self._held + text[start:]).lstrip(_LAYOUT)
        skipped = known + len(text) - start - len(chunk)
        self._held = ""
        if chunk.startswith(CLOSING):
            self._closing = False
            return start + skipped + len(CLOSING) - known
        if CLOSING.startswith(chunk):
            self._held = chunk
            return len(text)
        # Something else, and the tag is missing. Held letters of it go back into the text.
        self._closing = False
        self._held = chunk[: max(0, known - skipped)]
        return max(start, start + skipped - known)

    def _give_back(self) -> None:
        """What was read as a call, and is none, becomes content."""
        self._call = None
        text = "".join(self._raw)
        self._raw.clear()
        self._write(text)

    def _write(self, text: str) -> None:
        """Content, but for the white space at its end, which waits for what follows."""
        body = text.rstrip()
        if body:
            if self._wrote or not self._after_call:
                self._content("".join(self._blank) + body)
            else:  # the answer began with a call: what lies between is layout
                self._content(body.lstrip())
            self._blank.clear()
            self._wrote = True
            self._after_call = False
        if len(body) < len(text):
            self._blank.append(text[len(body) :])
