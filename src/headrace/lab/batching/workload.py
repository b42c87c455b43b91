"""The trace of the experiment: its lengths, the steps that follow from them, how it is served.

Judges and reports nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import build_engine
from headrace.lab.lab import Lab
from headrace.lab.parts.served import Served, serve_backlog
from headrace.lab.parts.traces import Job, Lengths, heavy_tailed, serve
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk

#: Sequences that run together when the trace is served.
SLOTS = 8
MODES = ("static", "continuous")


@dataclass(frozen=True)
class Plan:
    """The workload of a run. Everything here is a consequence of the lengths alone."""

    jobs: tuple[Job, ...]

    @cached_property
    def steps(self) -> dict[str, list[dict[int, Chunk]]]:
        """By mode: the steps that the trace takes."""
        return {mode: list(serve(self.jobs, SLOTS, static=mode == "static")) for mode in MODES}

    def bounds(self, mode: str, costs: CostModel, rates: MachineRates) -> list[float]:
        """Least seconds of every step."""
        steps = (list(step.values()) for step in self.steps[mode])
        return [bound(costs.step(chunks), rates).bound_s for chunks in steps]

    def ttft_s(self, mode: str, bounds: Sequence[float]) -> list[float]:
        """By request: when its first token is drawn, were every step at its bound."""
        first: dict[int, float] = {}
        for step, end in zip(self.steps[mode], itertools.accumulate(bounds), strict=True):
            for number in step:
                first.setdefault(number, end)
        return [first[number] for number in range(len(self.jobs))]


def plan(lab: Lab) -> Plan:
    """The trace: four full batches (eight in a full run), most answers short, a few very long."""
    n = (4 if lab.quick else 8) * SLOTS
    prompts, outputs = Lengths(24, 0.6, 96), Lengths(16, 1.2, 256 if lab.quick else 512)
    return Plan(tuple(heavy_tailed(lab.random(), n, prompts, outputs)))


def engine_of(lab: Lab, mode: str) -> Engine:
    """A step has room for all prompts that enter together, so that steps can be counted."""
    return build_engine(
        lab.open(),
        EngineOptions(
            max_model_len=1024,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=1024,
            batching=mode,
            enable_prefix_caching=False,
            num_threads=lab.threads,
        ),
    )


def serve_plan(lab: Lab, engine: Engine, work: Plan) -> Served:
    """The trace on an engine, with passages of English as prompts."""
    longest = max(job.num_prompt for job in work.jobs)
    text = lab.english(longest + 7 * len(work.jobs))
    prompts = [text[7 * i : 7 * i + longest] for i in range(len(work.jobs))]
    return serve_backlog(engine, prompts, work.jobs)


def percentile(values: Sequence[float], percent: float) -> float:
    """percent: 0 … 100; between two values on a straight line."""
    return float(np.percentile(values, percent))
