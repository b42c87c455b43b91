"""What a rung of the ladder reports, and how two sets of logits are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
#: (request number, sample number, position) → logits float32 [V] that follow that position.
Rows = Mapping[tuple[int, int, int], Logits]


@dataclass(frozen=True, slots=True)
class RungResult:
    """One rung. exact: bits are compared and bound is 0. max_abs_error: worst difference of a
    logit, or what `unit` says. events: how often the thing the rung tests really happened; a rung
    without events has tested nothing and fails."""

    name: str
    exact: bool
    max_abs_error: float
    bound: float
    events: int
    passed: bool
    detail: str = ""
    seconds: float = 0.0

    @classmethod
    def judge(
        cls, name: str, error: float, events: int, detail: str = "", bound: float = 0.0
    ) -> RungResult:
        """Exact when bound is 0. Passes with events and an error ≤ bound (NaN never passes)."""
        exact = bound == 0.0
        return cls(name, exact, error, bound, events, events > 0 and error <= bound, detail)

    @classmethod
    def crashed(cls, name: str, exact: bool, error: BaseException) -> RungResult:
        """The path under test raised: that is a failed rung, not a failed verify."""
        return cls(name, exact, float("inf"), 0.0, 0, False, f"{type(error).__name__}: {error}")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; an infinite or undefined error becomes null."""
        finite = self.max_abs_error if np.isfinite(self.max_abs_error) else None
        return {
            "name": self.name,
            "exact": self.exact,
            "max_abs_error": finite,
            "bound": self.bound,
            "events": self.events,
            "passed": self.passed,
            "detail": self.detail,
            "seconds": round(self.seconds, 2),
        }


def difference(expected: Rows, actual: Rows) -> float:
    """Largest |Δ| over the rows of `expected`; 0.0 only for equal bits. A missing row, a NaN on one
    side, or bits that differ without a numeric difference count as infinite."""
    worst = 0.0
    for key, row in expected.items():
        other = actual.get(key)
        if other is None:
            return float("inf")
        if row.tobytes() == other.tobytes():
            continue
        error = float(np.max(np.abs(row.astype(np.float64) - other.astype(np.float64))))
        worst = max(worst, error if error > 0.0 else float("inf"))
    return worst
