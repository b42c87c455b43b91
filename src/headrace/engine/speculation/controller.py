"""Controller: how many drafts a sequence gets. Here the protocol and the simplest one, a fixed γ.

A controller sees counts and times, never tokens or logits, and it decides before the round's
samples are drawn: so no choice of it can bias a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.engine.speculation.account import Round
from headrace.engine.speculation.drafter import Ask, Draft


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step that has just ended, with drafts or without. num_rows: tokens it computed, of
    num_seqs sequences; num_drafts: of the rows, those of drafts. is_decode: nobody prefilled.
    step_s: its time without drafting; draft_s: time of all drafters before it."""

    num_rows: int
    num_seqs: int
    num_drafts: int
    is_decode: bool
    step_s: float
    draft_s: float


class Controller(Protocol):
    """One per drafter of an engine. The requests of its asks all use that drafter."""

    def num_drafts(self, asks: Sequence[Ask], num_running: int) -> list[int]:
        """γ for each ask, 0 … ask.limit. num_running: sequences that run, these included."""
        ...

    @property
    def least_chance(self) -> float:
        """Of the asks that num_drafts has just decided on; see Ask."""
        ...

    def cut(self, asks: Sequence[Ask], drafts: Sequence[Draft]) -> None:
        """Shortens drafts that are not worth their rows; called with what the drafter made of the
        asks of `num_drafts`, before scheduling. Looks at lengths and grades only."""
        ...

    def observe(self, rounds: Sequence[Round], cost: StepCost) -> None:
        """After every step with asks; rounds: of the sequences that had drafts and took part. May
        write the gains of round.account."""
        ...

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        ...


class FixedController:
    """γ drafts for everybody, always."""

    least_chance = 0.0

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts

    def num_drafts(self, asks: Sequence[Ask], num_running: int) -> list[int]:
        """See Controller."""
        return [min(self._num_drafts, ask.limit) for ask in asks]

    def cut(self, asks: Sequence[Ask], drafts: Sequence[Draft]) -> None:
        """Shortens nothing."""

    def observe(self, rounds: Sequence[Round], cost: StepCost) -> None:
        """Learns nothing."""

    def forget(self, request_id: int) -> None:
        """Keeps nothing."""
