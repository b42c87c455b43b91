"""GrammarCompiler: from StructuredOutputs to constraints, for one tokenizer.

    StructuredOutputs ─ grammar.py ─▶ text ─ llguidance ─▶ CompiledGrammar ─ start() ─▶ constraint

Compiling takes from a millisecond to some tenths of a second and runs outside the interpreter lock;
call it from a worker thread where nothing may wait. Knows no engine.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import UsageError
from headrace.formats.tokenizer import Tokenizer
from headrace.structured.constraint import (
    GrammarConstraint,
    GrammarError,
    NativeGuard,
    error_text,
)
from headrace.structured.grammar import grammar_text
from headrace.structured.limits import STACK_BYTES, parser_limits
from headrace.structured.spec import StructuredOutputs
from headrace.structured.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Compiled grammars that are kept, least recently used out first.
MAX_KEPT = 16

T = TypeVar("T")


class CompiledGrammar:
    """A grammar bound to a vocabulary, in its first state. Immutable; safe to share."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> GrammarConstraint:
        """A fresh constraint for one request (some ten microseconds)."""
        return GrammarConstraint(self._matcher.deep_copy())


class GrammarCompiler:
    """One per tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[StructuredOutputs, CompiledGrammar] = OrderedDict()

    def compile(self, spec: StructuredOutputs) -> CompiledGrammar:
        """The grammar of `spec`. Raises UsageError naming what cannot be honoured: nothing of a
        schema is ever passed over; or where llguidance is not installed."""
        with self._lock:
            if spec in self._kept:
                self._kept.move_to_end(spec)
                return self._kept[spec]
        vocabulary = self.prepare()
        grammar = self._on_large_stack(lambda: self._build(vocabulary, spec))
        with self._lock:
            self._kept[spec] = grammar
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def prepare(self) -> LLTokenizer:
        """Reads the vocabulary, once: a tenth of a second for 49,152 ids, 1.4 s for 262,144."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = read_vocabulary(self._tokenizer)
            return self._vocabulary

    def _build(self, vocabulary: LLTokenizer, spec: StructuredOutputs) -> CompiledGrammar:
        from llguidance import LLMatcher

        try:
            with NativeGuard():
                text = grammar_text(spec)
                matcher = LLMatcher(vocabulary, text, log_level=0, limits=parser_limits())
                if matcher.is_error():
                    raise GrammarError(error_text(matcher))
                for warning in matcher.get_grammar_warnings():
                    raise GrammarError(warning)
                matcher.compute_bitmask()  # so that the first token of a request finds it done
                if matcher.is_error():
                    raise GrammarError(error_text(matcher))
        except UsageError:
            raise
        except (GrammarError, ValueError) as error:
            raise UsageError(f"structured_outputs.{spec.kind} cannot be used: {error}.") from None
        return CompiledGrammar(matcher)

    def _on_large_stack(self, work: Callable[[], T]) -> T:
        """work() on a thread whose stack holds any recursion that limits.py lets through."""
        results: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="headrace-grammar")
        with self._lock:  # the size is the process's, and holds for threads that start meanwhile
            before = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        thread.join()
        if failures:
            raise failures[0]
        return results[0]
