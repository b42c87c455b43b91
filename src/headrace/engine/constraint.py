"""Constraint: what the engine sees of structured output, one per sample.

    mask() ─▶ sampler (bias stage) ─▶ token ─▶ accept(token) ─▶ finished?

The engine knows no grammar, schema or library; `headrace.structured` makes constraints, and
anything else with these four members will do. A constraint belongs to one sample and is used by
one thread at a time. An exception from any member ends that sample with an error, and no other.
"""

from __future__ import annotations

from typing import Protocol

from headrace.engine.sampler import TokenMask


class Constraint(Protocol):
    """Decides, token by token, which ids may come next."""

    def mask(self) -> TokenMask | None:
        """Ids that may come next, end ids among them where the text may end; None = any id.

        Called once before every draw. The array may be reused: it is valid until the next call of
        any member.
        """
        ...

    def accept(self, token: int) -> None:
        """Moves on by a token that was drawn under the last mask and did not end the sample."""
        ...

    def fork(self) -> Constraint:
        """An independent copy in the same state."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing but an end id can follow. The sample then stops without one."""
        ...
