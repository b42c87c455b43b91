"""What an answer is made of once it has been read: text, reasoning, tool calls.

Plain data and the collector that parsers write into. Knows no format and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)  # not frozen: one is made per token, and that would double its price
class Content:
    """Text for the reader."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """Text that the model wrote to itself before its answer."""

    text: str


@dataclass(slots=True)
class ToolCallStart:
    """A call begins. index counts the calls of one answer from 0; id is unique."""

    index: int
    id: str
    name: str


@dataclass(slots=True)
class ToolCallArguments:
    """The next part of a call's arguments. All parts of a call, joined, are its JSON text."""

    index: int
    fragment: str


Piece = Content | Reasoning | ToolCallStart | ToolCallArguments


class Collector:
    """Gathers pieces in order; texts of one kind that touch become one piece."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def content(self, text: str) -> None:
        """Adds text for the reader."""
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Content):
            last.text += text
        elif text:
            self._pieces.append(Content(text))

    def reasoning(self, text: str) -> None:
        """Adds reasoning."""
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Reasoning):
            last.text += text
        elif text:
            self._pieces.append(Reasoning(text))

    def start(self, index: int, call_id: str, name: str) -> None:
        """Begins a call."""
        self._pieces.append(ToolCallStart(index, call_id, name))

    def arguments(self, index: int, fragment: str) -> None:
        """Adds to the arguments of a call."""
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, ToolCallArguments) and last.index == index:
            last.fragment += fragment
        elif fragment:
            self._pieces.append(ToolCallArguments(index, fragment))

    def take(self) -> list[Piece]:
        """The pieces since the last take."""
        pieces, self._pieces = self._pieces, []
        return pieces


#: Where a parser sends text that it has found to be no business of its own.
TextSink = Callable[[str], None]
