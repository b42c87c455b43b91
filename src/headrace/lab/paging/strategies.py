"""Ways to give out KV memory, and what each holds for a request. From lengths alone: knows no
engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.engine.sizing import ceil_div
from headrace.lab.parts.traces import Job

CONTEXT, BLOCK = 2048, 16


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to give out memory. told: the engine is told how long each answer will be, which
    nobody knows in practice; otherwise it must be ready for the whole context."""

    name: str
    allocator: str
    told: bool = False
    block_size: int = BLOCK

    @property
    def key(self) -> str:
        """Names its share in predictions and results."""
        name = "oracle" if self.told else self.allocator
        return f"useful_{name}_{self.block_size}"

    @property
    def doubles(self) -> bool:
        return self.allocator == "growing"

    def held(self, job: Job, positions: int) -> int:
        """Positions held for a request of which `positions` are computed, with nobody in the
        way."""
        size = self.block_size
        needed = ceil_div(positions, size)
        match self.allocator:
            case "contiguous":
                whole = min(job.num_positions, CONTEXT) if self.told else CONTEXT
                return size * ceil_div(whole, size)
            case "growing":
                columns = ceil_div(job.num_prompt, size)
                while columns < needed:
                    columns *= 2
                return size * min(columns, CONTEXT // size)
        return size * needed


STRATEGIES = (
    Strategy("reserve the context", "contiguous"),
    Strategy("reserve what is needed (oracle)", "contiguous", told=True),
    Strategy("growing", "growing"),
    Strategy("paged, blocks of 16", "paged"),
    Strategy("paged, blocks of 128", "paged", block_size=128),
)


def useful_share(jobs: Sequence[Job], strategy: Strategy) -> float:
    """Positions computed ÷ positions held, summed over the steps of all requests: from the lengths
    alone. After step k of a request num_prompt + k positions are computed; with its last it ends.
    """
    computed = held = 0
    for job in jobs:
        for step in range(job.num_output - 1):
            computed += job.num_prompt + step
            held += strategy.held(job, job.num_prompt + step)
    return computed / held
