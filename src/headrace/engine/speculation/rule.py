"""The rules by which a draft token stands or falls. Either way the round draws one token per row:

    row j: logits of the target behind the last token and j drafts ─▶ rule ─▶ token
           token == draft[j]: accepted, on to row j + 1        otherwise: the round ends with it

So a rule only draws. Coupled: the target's own token, with the request's own noise: the text is
that of plain decoding whatever the draft. Rejection (rejection.py): the draft with probability
min(1, q/p), else a token of the residual, which never is the draft: the distribution is the
target's. The row behind the last draft, and every row without drafts, is drawn plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.engine import sampler
from headrace.engine.sampler import Drawn, SamplerState, TokenMask
from headrace.engine.scoring import Logits
from headrace.engine.speculation.drafter import Distribution
from headrace.native._core import Pool


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row of a round. state: of the sample, at this position. position: absolute, of the token
    to draw. draft: the token that is tested; drawn_from: its distribution, None = a point mass.
    mask: ids that the constraint allows here, None = any."""

    state: SamplerState
    position: int
    draft: int
    drawn_from: Distribution | None
    mask: TokenMask | None


class AcceptanceRule(Protocol):
    """Draws the tokens of tested rows. Stateless: noise is keyed by seed, position and stream."""

    def draw(
        self, logits: Logits, rows: Sequence[DraftRow], num_ids: int, pool: Pool | None
    ) -> list[Drawn]:
        """logits: float32 [len(rows), V], the target's. A token for each row, with the logprobs and
        the trace that its request wants, always of the target. Mutates nothing."""
        ...


class CoupledRule:
    """The target's own draw; see the module's text."""

    def draw(
        self, logits: Logits, rows: Sequence[DraftRow], num_ids: int, pool: Pool | None
    ) -> list[Drawn]:
        """See AcceptanceRule."""
        masks = [row.mask for row in rows]
        return sampler.draw(
            logits,
            [row.state for row in rows],
            [row.position for row in rows],
            num_ids,
            pool,
            masks if any(mask is not None for mask in masks) else None,
        )
