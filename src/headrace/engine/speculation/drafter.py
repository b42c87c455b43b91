"""Drafter: who guesses the next tokens of sequences that decode.

    propose(asks) ─▶ a Draft for each ─▶ one step computes and judges them ─▶ kept(…), forget(…)

A drafter sees committed tokens only and may be as wrong as it likes: no text depends on it (with
the rejection rule no distribution does). It knows no schedule, no acceptance, and no blocks but its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.engine.generation import Generation

#: Grades of draft tokens that a drafter may tell apart.
NUM_GRADES = 16


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a draft token was really drawn from, after all stages: ids int32 [n] ascending, probs
    float64 [n] > 0, of sum 1. Ids that are not listed have probability 0."""

    ids: npt.NDArray[np.int32]
    probs: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence that wants a draft behind generation.sequence.tokens: at most `limit` ≥ 1
    tokens. Read what the generation holds; change nothing (fork its sampler state and constraint
    to move on). wants_distributions: for the rejection rule. least_chance: a draft that would stand
    with less is not worth its time, and a drafter that can tell stops there; by nothing that
    depends on how a token was drawn, or the rejection rule is biased."""

    generation: Generation
    limit: int
    wants_distributions: bool = False
    least_chance: float = 0.0


@dataclass(slots=True)
class Draft:
    """Proposed tokens, the next one first; none is fine. distributions: of each, where the ask
    wanted them; None = each token was certain (a point mass). grades: of each token a small number,
    0 … NUM_GRADES − 1, for how it was found; the controller learns what each grade is worth. None =
    all are alike."""

    tokens: list[int]
    distributions: list[Distribution] | None = None
    grades: list[int] | None = None

    def cut(self, num_tokens: int) -> None:
        """Keeps the first num_tokens at most."""
        del self.tokens[num_tokens:]
        if self.distributions is not None:
            del self.distributions[num_tokens:]
        if self.grades is not None:
            del self.grades[num_tokens:]


class Drafter(Protocol):
    """One per engine, on the engine's thread. An exception from `propose` costs the asks of this
    step their drafts and nothing else."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """A draft for each ask, in their order; ids of the target's vocabulary."""
        ...

    def kept(self, generation: Generation, num_kept: int) -> None:
        """After the step: of its last draft, the first num_kept tokens are in sequence.tokens (one
        token more follows them, drawn by the target, unless the sample ended). Drafts that were
        cut for want of room were not tested, let alone kept."""
        ...

    def forget(self, generation: Generation) -> None:
        """The sample has ended: what was kept for it can go. Also called for ones never asked
        about."""
        ...
