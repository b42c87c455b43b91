"""The sampler trace: what every stage did to the distribution of one step.

Bounded: the N most probable candidates (SamplingParams.trace) and the mass of all others. Pure
values, in the order of the request's stages; the distribution after a stage is the one before the
next. With its logits, normalisers and temperature grid, whoever has the trace can follow other
parameters without the model (docs/sampling.md, "From a trace").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A distribution over candidate ids.

    num_candidates: ids that can still be drawn. entropy: nats. top: (id, probability), most
    probable first, ties to the lowest id. tail_mass: probability of the candidates not in top.
    log_normaliser: ln Σ exp(logit) over all candidates. logits: of top, as they are at this point;
    probability = exp(logit − log_normaliser).
    """

    num_candidates: int
    entropy: float
    tail_mass: float
    top: tuple[tuple[int, float], ...]
    log_normaliser: float
    logits: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StageTrace:
    """One stage. active: false when its parameters switch it off (then before = after)."""

    name: str
    active: bool
    before: Snapshot
    after: Snapshot


class GridPoint(NamedTuple):
    """The distribution at one temperature: entropy in nats, ln Σ exp(logit ÷ temperature)."""

    temperature: float
    entropy: float
    log_normaliser: float


@dataclass(frozen=True, slots=True)
class SamplerTrace:
    """One drawn token: its id, and every stage from the model's own distribution to the draw.
    grid: of the logits after bias and penalties, where the other stages start; ascending."""

    token: int
    stages: tuple[StageTrace, ...]
    grid: tuple[GridPoint, ...]

    def ids(self) -> set[int]:
        """Every id that is named in it."""
        snapshots = (self.stages[0].before, *(stage.after for stage in self.stages))
        return {self.token, *(token for snapshot in snapshots for token, _ in snapshot.top)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        {"token", "model": snapshot, "stages": [{"name", "active", "after": snapshot}], "grid":
        {"temperature": […], "entropy": […], "log_normaliser": […]}}
        """
        return {
            "token": self.token,
            "model": _plain(self.stages[0].before),
            "stages": [
                {"name": stage.name, "active": stage.active, "after": _plain(stage.after)}
                for stage in self.stages
            ],
            "grid": {
                name: [point[i] for point in self.grid] for i, name in enumerate(GridPoint._fields)
            },
        }


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "num_candidates": snapshot.num_candidates,
        "entropy": snapshot.entropy,
        "tail_mass": snapshot.tail_mass,
        "log_normaliser": snapshot.log_normaliser,
        "top": [
            {"id": token, "probability": p, "logit": logit}
            for (token, p), logit in zip(snapshot.top, snapshot.logits, strict=True)
        ],
    }
