"""The rejection rule, both sides of it: text is not that of plain decoding, its distribution is.

q: the target's distribution of a row after all stages. p: the one that the draft x was drawn from.

    drafter   x ~ p                                       random stream 1    draw_drafts
    target    x with probability min(1, q(x) / p(x))                    2    sampler.draw(drafts=…)
              else a token of max(q − p, 0), normalised                 3
    rows without a draft: a draw from q                                 0    sampler.draw

A token of the residual never is x, so a draft was kept exactly if it was drawn. With a draft that
was certain (p is all mass on x) the outcome has the law q whatever x is and however it was chosen.
With a drawn one, nothing but the tokens before it may decide whether it is tested: neither x itself
nor what follows.

The arithmetic is in the native core (native/src/rejection.cpp; docs/speculation.md), and the proofs
enumerate `acceptance_law`, which calls the same functions. Knows no requests and no rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.sampler import DraftedToken, RowStatus, SamplerState, TokenMask
from headrace.engine.scoring import Logits
from headrace.engine.speculation.drafter import Distribution
from headrace.native import _core
from headrace.native._core import Pool


def draw_drafts(
    logits: Logits,
    states: Sequence[SamplerState],
    positions: Sequence[int],
    num_ids: int,
    pool: Pool | None = None,
    masks: Sequence[TokenMask | None] | None = None,
) -> list[tuple[int, Distribution] | None]:
    """The drafter's side: a token per row, and what it was drawn from, after all stages.

    Arguments as of sampler.draw; logits: the draft model's. None where a row cannot be drawn from
    (not finite, no candidate): there is no draft then. A greedy request's distribution is one id.
    Mutates nothing.
    """
    proposals = _core.propose(logits, list(states), list(positions), num_ids, pool, masks)
    return [
        (token, Distribution(ids, probs)) if status == RowStatus.OK.value else None
        for token, status, ids, probs in proposals
    ]


def acceptance_law(
    target: Distribution, draft: int, drawn_from: Distribution | None
) -> tuple[float, npt.NDArray[np.float64]]:
    """What sampler.draw does with a draft, as probabilities: (that it is kept, those of target.ids
    if it is not)."""
    law: Any = _core.rejection_law(target.ids, target.probs, drafted(draft, drawn_from))
    kept, residual = law
    return kept, residual


def drafted(token: int, drawn_from: Distribution | None) -> DraftedToken:
    """A draft as the sampler takes it."""
    return token, None if drawn_from is None else (drawn_from.ids, drawn_from.probs)
