"""The sampler trace: what every stage did to the distribution of one step.

Bounded: the N most probable candidates (SamplingParams.trace) and the mass of all others. Pure
values, in the order of the request's stages; the distribution after a stage is the one before the
next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A distribution over candidate ids.

    num_candidates: ids that can still be drawn. entropy: nats. top: (id, probability), most
    probable first, ties to the lowest id. tail_mass: probability of the candidates not in top.
    """

    num_candidates: int
    entropy: float
    tail_mass: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StageTrace:
    """One stage. active: false when its parameters switch it off (then before = after)."""

    name: str
    active: bool
    before: Snapshot
    after: Snapshot


@dataclass(frozen=True, slots=True)
class SamplerTrace:
    """One drawn token: its id, and every stage from the model's own distribution to the draw."""

    token: int
    stages: tuple[StageTrace, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; each distribution appears once.

        {"token", "model": snapshot, "stages": [{"name", "active", "after": snapshot}]}
        """
        return {
            "token": self.token,
            "model": _plain(self.stages[0].before),
            "stages": [
                {"name": stage.name, "active": stage.active, "after": _plain(stage.after)}
                for stage in self.stages
            ],
        }


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "num_candidates": snapshot.num_candidates,
        "entropy": snapshot.entropy,
        "tail_mass": snapshot.tail_mass,
        "top": [{"id": token, "probability": p} for token, p in snapshot.top],
    }
