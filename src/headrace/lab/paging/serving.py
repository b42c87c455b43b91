"""Requests on an engine, with a note of what its KV memory held after every step. Knows no
strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.bench.measure import GREEDY
from headrace.engine.core import Engine
from headrace.lab.lab import Lab
from headrace.lab.parts.traces import Job
from headrace.models.load import LoadedModel


@dataclass(slots=True)
class Occupancy:
    """By step, in bytes: what was held, and the part of it that held something; sequences that ran;
    whether others waited. copied: blocks. total: of the pool. computed: prompt tokens."""

    total: int
    held: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waited: list[bool] = field(default_factory=list)
    copied: int = 0
    preemptions: int = 0
    computed: int = 0

    @property
    def useful_share(self) -> float:
        return sum(self.used) / sum(self.held)

    def while_waiting(self, values: Sequence[int]) -> float:
        """The mean over the steps in which somebody had to wait; of all, where nobody had to."""
        chosen = [v for v, waited in zip(values, self.waited, strict=True) if waited]
        return float(np.mean(chosen or values))


def serve_counting(
    engine: Engine,
    prompts: Sequence[list[int]],
    jobs: Sequence[Job],
    limits: Sequence[int | None],
) -> Occupancy:
    """All requests arrive at once; a client leaves when it has its job's answer. Invariants are
    checked after every step. limits: max_tokens of each request."""
    requests = [
        engine.add(ids, GREEDY.replace(max_tokens=limit))
        for ids, limit in zip(prompts, limits, strict=True)
    ]
    served = Occupancy(engine.kv_usage().total_bytes)
    while engine.has_work:
        engine.step()
        engine.check_invariants()
        for request, job in zip(requests, jobs, strict=True):
            if not request.finished and len(request.generations[0].token_ids) >= job.num_output:
                engine.abort(request)
        usage = engine.kv_usage()
        served.held.append(usage.held_bytes)
        served.used.append(usage.used_bytes)
        served.running.append(len(engine.scheduler.running))
        served.waited.append(bool(engine.scheduler.waiting))
    served.copied = engine.num_copied_blocks
    served.preemptions = engine.num_preemptions
    served.computed = sum(len(ids) for ids in prompts) - sum(r.num_cached_tokens for r in requests)
    return served


def noise(lab: Lab, model: LoadedModel, lengths: Sequence[int], stream: int = 5) -> list[list[int]]:
    """Random prompts of those lengths, by the run's seed."""
    random = lab.random(stream)
    return [random.integers(0, model.vocab_size, n).tolist() for n in lengths]
