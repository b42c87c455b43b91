"""Calls without tags: the whole answer is one call object, several, or a list of them.

    {"name": "weather", "arguments": {"city": "Oslo"}}
    [{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "time", "parameters": {}}]

Also inside one Markdown fence. An answer that begins with anything else, or whose object is no
call, is content. Text behind the calls is content, too.
"""

from __future__ import annotations

import re

from headrace.server.parsing.call_object import CallObject
from headrace.server.parsing.calls import Calls
from headrace.server.parsing.pieces import TextSink

_SPACE = re.compile(r"[ \t\r\n]*")
#: How a fence opens and closes, and what may become one.
_OPENING = re.compile(r"```[A-Za-z_]{0,16}[ \t]{0,8}\r?\n")
_OPENING_BEGIN = re.compile(r"`{0,3}|```[A-Za-z_]{0,16}[ \t]{0,8}\r?")
_CLOSING = re.compile(r"```")
_CLOSING_BEGIN = re.compile(r"`{0,3}")

# Where in the answer: before an object, in one, behind one, or where there are none.
_BEFORE, _CALL, _AFTER, _PLAIN = range(4)


class BareCalls:
    """One answer's text, in; content to `content`, calls to `calls`."""

    __slots__ = ("_call", "_calls", "_content", "_held", "_in_fence", "_in_list", "_raw", "_state")

    def __init__(self, calls: Calls, content: TextSink) -> None:
        self._calls = calls
        self._content = content
        self._state = _BEFORE
        self._call: CallObject | None = None
        self._in_list = False
        self._in_fence = False
        self._held = ""  # the beginning of a fence, perhaps
        self._raw: list[str] = []  # what was read and not passed on

    def push(self, text: str) -> None:
        """Takes the next part of the text."""
        if self._state == _PLAIN:
            self._content(text)
            return
        i = 0
        while i < len(text):
            if self._state == _CALL and self._call is not None:
                i = self._read_call(self._call, text, i)
            elif self._state == _PLAIN:
                self._content(text[i:])
                return
            else:
                i = self._read_around(text, i)

    def finish(self) -> None:
        """The text has ended: what was held back is decided now."""
        if self._state == _CALL or not self._calls.num_begun:
            self._end_as_content()

    def _read_call(self, call: CallObject, text: str, start: int) -> int:
        end = self._calls.push(call, text, start)
        if call.started:
            self._raw.clear()
        else:
            self._raw.append(text[start:end])
        if call.failed and not call.complete:
            self._end_as_content()
        elif call.failed or call.done:
            self._state = _AFTER
        return end

    def _read_around(self, text: str, start: int) -> int:
        """Between the objects: white space, brackets, commas, a fence."""
        if self._held:
            return self._read_fence(text, start)
        match = _SPACE.match(text, start)
        i = match.end() if match else start
        self._raw.append(text[start:i])
        if i == len(text):
            return i
        character = text[i]
        before, after = self._state == _BEFORE, self._state == _AFTER
        if character == "{" and (before or not self._in_list):
            self._call = self._calls.new(tagged=False)
            self._state = _CALL
            return i
        if character == "[" and before and not self._in_list:
            self._in_list = True
        elif character == "," and after and self._in_list:
            self._state = _BEFORE
        elif character == "]" and after and self._in_list:
            self._in_list = False
            self._raw.clear()
            return i + 1
        elif character == "`" and (after if self._in_fence else before and not self._in_list):
            self._held = character
            return i + 1
        else:
            self._end_as_content()
            return i
        self._raw.append(character)
        return i + 1

    def _read_fence(self, text: str, start: int) -> int:
        """The next character of a fence of which the first ones are held."""
        held = self._held + text[start]
        if (_CLOSING if self._in_fence else _OPENING).fullmatch(held):
            self._held = ""
            self._in_fence = not self._in_fence
            if self._in_fence:
                self._raw.append(held)
            else:
                self._raw.clear()
        elif (_CLOSING_BEGIN if self._in_fence else _OPENING_BEGIN).fullmatch(held):
            self._held = held
        else:
            self._end_as_content()
            return start
        return start + 1

    def _end_as_content(self) -> None:
        """From here on, with all that was held back, it is content."""
        self._state = _PLAIN
        self._call = None
        text = "".join(self._raw) + self._held
        self._raw.clear()
        self._held = ""
        self._content(text.lstrip() if self._calls.num_begun else text)
