"""Parts the reasoning of `<think>` models from their answer.

    <think>
    The user asks for a sum …
    </think>

    The answer is 4.

Templates differ in who writes the opening tag: with some the model does, with others the prompt
already ends with it, and the answer starts inside. A tag counts only at the beginning of an answer.
White space next to the tags is layout, neither reasoning nor content.
"""

from __future__ import annotations

from typing import Literal

from headrace.errors import UsageError
from headrace.server.parsing.matching import possible_start
from headrace.server.parsing.pieces import Collector, TextSink

OPENING = "<think>"
CLOSING = "</think>"

#: How the reasoning stands in an answer: none that we know of, with its opening tag, or without it
#: because the prompt ends with that.
ReasoningFormat = Literal["none", "tagged", "opened"]
REASONING_PARSERS = ("auto", "think", "none")

_BEFORE, _INSIDE, _BEHIND, _OVER = range(4)


def reasoning_format(template: str, prompt_end: str, parser: str = "auto") -> ReasoningFormat:
    """How the answers to a prompt reason. template: the chat template's source; with "auto" its
    mention of the tags decides. prompt_end: the last few words of the rendered prompt: it may open
    the reasoning, or skip it. parser: one of REASONING_PARSERS. Raises UsageError for another."""
    if parser not in REASONING_PARSERS:
        raise UsageError(
            f"reasoning-parser {parser!r} is unknown (known: {', '.join(REASONING_PARSERS)})."
        )
    thinks = OPENING in template or CLOSING in template
    if parser == "none" or (parser == "auto" and not thinks):
        return "none"
    end = prompt_end.rstrip()
    return "opened" if end.endswith(OPENING) else "none" if end.endswith(CLOSING) else "tagged"


class ReasoningSplit:
    """One answer's text, in; reasoning to the sink, the rest to `content`."""

    __slots__ = ("_blank", "_content", "_held", "_inside", "_sink", "_state", "_wrote")

    def __init__(self, sink: Collector, content: TextSink, *, inside: bool) -> None:
        """inside: the prompt ended with the opening tag, so the answer starts as reasoning. (A tag
        that the model repeats is then no part of it.)"""
        self._sink = sink
        self._content = content
        self._inside = inside
        self._state = _BEFORE
        self._held = ""  # the beginning of a tag, perhaps
        self._blank: list[str] = []  # white space that waits for what follows
        self._wrote = False  # whether any reasoning has been written

    @property
    def inside(self) -> bool:
        """Whether the next text is reasoning, as far as one can know."""
        return self._state == _INSIDE or (self._state == _BEFORE and self._inside)

    def push(self, text: str) -> None:
        """Takes the next part of the text."""
        if self._state == _BEFORE:
            text = self._read_before(text)
        if self._state == _INSIDE:
            text = self._read_inside(text)
        if self._state == _BEHIND:
            text = text.lstrip()
            if text:
                self._state = _OVER
        if self._state == _OVER and text:
            self._content(text)

    def finish(self) -> None:
        """The text has ended: what was held back is decided now."""
        held, self._held = self._held, ""
        if self._state == _BEFORE and not self._inside:
            self._content("".join(self._blank) + held)
        elif self._state in (_BEFORE, _INSIDE):
            self._write(held)
            if self._wrote:
                self._sink.reasoning("".join(self._blank))
        self._blank.clear()

    def _read_before(self, text: str) -> str:
        """Decides how the answer begins. Returns what is left to be read."""
        chunk = self._held + text
        body = chunk.lstrip()
        if len(body) < len(chunk):
            self._blank.append(chunk[: len(chunk) - len(body)])
        self._held = ""
        if body.startswith(OPENING):
            self._state = _INSIDE
            self._blank.clear()
            return body[len(OPENING) :]
        if OPENING.startswith(body):
            self._held = body
            return ""
        if self._inside:
            self._state = _INSIDE
            self._blank.clear()
            return body
        self._state = _OVER
        body = "".join(self._blank) + body
        self._blank.clear()
        return body

    def _read_inside(self, text: str) -> str:
        chunk = self._held + text
        self._held = ""
        tag = chunk.find(CLOSING)
        if tag < 0:
            keep = possible_start(chunk, CLOSING)
            self._held = chunk[len(chunk) - keep :]
            self._write(chunk[: len(chunk) - keep])
            return ""
        self._write(chunk[:tag])
        self._blank.clear()
        self._state = _BEHIND
        return chunk[tag + len(CLOSING) :]

    def _write(self, text: str) -> None:
        body = text.rstrip()
        if body:
            text_before = "".join(self._blank) if self._wrote else ""
            self._sink.reasoning(text_before + (body if self._wrote else body.lstrip()))
            self._blank.clear()
            self._wrote = True
        if len(body) < len(text):
            self._blank.append(text[len(body) :])
