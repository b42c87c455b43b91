"""What every engine in a comparison answers to: three measurements, all timed inside its process.

    prefill   prompt of p tokens, empty cache          → seconds until the next token is drawn
    decode    prompt of d tokens, then n tokens        → seconds of those n, one at a time
    batch     B prompts of p tokens, n tokens from each → seconds from the first to the last token

Tokens are drawn greedily and fed back. Every measurement starts from an empty cache. Knows no
process, no table and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Ids = Sequence[int]


class CannotRun(Exception):
    """This engine cannot run this model or this measurement; the text is one sentence saying why.
    The comparison goes on without it."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to make room for. model: a file or a directory, as Headrace resolved it. num_threads:
    of every measurement. max_context: most tokens of one sequence. num_sequences: the largest
    batch. batch_context: most tokens of one sequence of a batch."""

    model: Path
    num_threads: int
    max_context: int
    num_sequences: int
    batch_context: int


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds of one measurement, and the token ids it drew (of the first sequence)."""

    seconds: float
    tokens: list[int]


class Peer(Protocol):
    """One engine. Made in a fresh process; `load` is called once, before any measurement."""

    def load(self, load: Load) -> dict[str, str]:
        """Loads the model; how it was built and which settings are in force, for people. Raises
        CannotRun."""
        ...

    def prefill(self, ids: Ids) -> Measured:
        """Seconds of a prompt, up to its next token."""
        ...

    def decode(self, ids: Ids, n: int) -> Measured:
        """Seconds of n steps of one token after `ids` and the token drawn from them; n + 1
        tokens."""
        ...

    def batch(self, prompts: Sequence[Ids], n: int) -> Measured:
        """Seconds of whole sequences side by side: every prompt, and n tokens drawn from each."""
        ...
