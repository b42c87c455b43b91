"""Reads one answer as it streams: text in, typed pieces out.

    text ─▶ ReasoningSplit ─▶ BareCalls ─▶ TaggedCalls ─▶ content
                 │                └──────┬──────┘
             reasoning              calls (Calls)

Every stage passes on what is none of its business. The joined pieces depend on the text only, never
on how it was cut. Nothing is lost: what looks like a call and is none is content. Plain answers
need no parser at all; see `AnswerFormat.plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from headrace.formats.detokenizer import Detokenizer
from headrace.formats.tokenizer import Tokenizer
from headrace.server.parsing.bare_calls import BareCalls
from headrace.server.parsing.calls import Calls
from headrace.server.parsing.pieces import Collector, Piece, TextSink
from headrace.server.parsing.reasoning import ReasoningFormat, ReasoningSplit
from headrace.server.parsing.tagged_calls import TaggedCalls

#: hermes reads calls between tags, and an answer that is nothing but calls; json only the latter.
ToolFormat = Literal["hermes", "json", "none"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How to read the answers to one request. functions: names that may be called."""

    tools: ToolFormat = "none"
    reasoning: ReasoningFormat = "none"
    functions: Collection[str] = ()
    parallel: bool = True

    @property
    def plain(self) -> bool:
        """True when every answer is content as it stands, so that no parser is needed."""
        return self.reasoning == "none" and (self.tools == "none" or not self.functions)

    def parser(self, new_id: Callable[[], str]) -> AnswerParser:
        """A parser for one answer. new_id: gives a fresh id for each call."""
        return AnswerParser(self, new_id)


class AnswerParser:
    """One answer. Push its text in parts, then finish, once."""

    __slots__ = ("_calls", "_first", "_sink", "_stages")

    def __init__(self, form: AnswerFormat, new_id: Callable[[], str]) -> None:
        """new_id: gives a fresh id for each call."""
        self._sink = Collector()
        self._calls = Calls(frozenset(form.functions), self._sink, new_id, form.parallel)
        self._stages: list[TaggedCalls | BareCalls | ReasoningSplit] = []
        self._first: TextSink = self._sink.content
        if form.tools != "none" and form.functions:
            if form.tools == "hermes":
                self._put_first(TaggedCalls(self._calls, self._first))
            self._put_first(BareCalls(self._calls, self._first))
        if form.reasoning != "none":
            inside = form.reasoning == "opened"
            self._put_first(ReasoningSplit(self._sink, self._first, inside=inside))

    def _put_first(self, stage: TaggedCalls | BareCalls | ReasoningSplit) -> None:
        self._stages.insert(0, stage)
        self._first = stage.push

    @property
    def num_complete(self) -> int:
        """Calls so far that can be made."""
        return self._calls.num_complete

    @property
    def reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as one can know."""
        first = self._stages[0] if self._stages else None
        return isinstance(first, ReasoningSplit) and first.inside

    def push(self, text: str) -> list[Piece]:
        """The pieces that have become certain with the next part of the text."""
        self._first(text)
        return self._sink.take()

    def finish(self) -> list[Piece]:
        """The pieces that were held back, after the last part of the text."""
        for stage in self._stages:
            stage.finish()
        return self._sink.take()

    def finish_reason(self, reason: str) -> str:
        """The finish reason to report for the engine's: "tool_calls" for a stop with at least one
        complete call. An answer cut by length says so, whatever it holds."""
        return "tool_calls" if reason == "stop" and self.num_complete else reason


def num_reasoning_tokens(token_ids: Iterable[int], tokenizer: Tokenizer, form: AnswerFormat) -> int:
    """How many tokens of a whole answer come before the end of its reasoning: counted as a stream
    of it is, so that both say the same."""
    reader = replace(form, tools="none").parser(str)
    stream = Detokenizer(tokenizer, continuation=True)
    count = 0
    for token in token_ids:
        count += reader.reasoning
        reader.push(stream.push(token))
    return count
