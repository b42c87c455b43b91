"""Probe: runs requests through a real engine and keeps the logits the ladder compares.

A probe replaces prompt logprobs as the engine's observer: it asks for the logits of chosen
positions inside prompts, and sees every row a token is drawn from. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.request import Sequence as EngineSequence
from headrace.engine.scheduler import Plan
from headrace.ops.batch import Batch
from headrace.ops.executor import Executor
from headrace.verify.result import Logits

#: Greedy, a fixed number of tokens, no early end: the text is the same on every path or wrong.
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


class Probe:
    """An engine observer. edges: positions inside prompts whose logits are kept."""

    def __init__(self, executor: Executor, edges: Sequence[int] = ()) -> None:
        self.rows_seen: dict[tuple[int, int, int], Logits] = {}
        self._executor = executor
        self._edges = frozenset(edges)

    def rows(self, plan: Plan) -> list[int]:
        return [row for row, _, _ in self._wanted(plan)]

    def score(self, plan: Plan, batch: Batch) -> list[EngineSequence]:
        wanted = self._wanted(plan)
        done = 0
        for logits in self._executor.prompt_logits(batch):
            for i, row in enumerate(logits):
                _, sequence, position = wanted[done + i]
                self.rows_seen[(*sequence.order, position)] = row.copy()
            done += len(logits)
        return []

    def drawn_from(self, sequence: EngineSequence, logits: Logits) -> None:
        self.rows_seen[(*sequence.order, sequence.num_tokens - 1)] = np.array(logits)

    def _wanted(self, plan: Plan) -> list[tuple[int, EngineSequence, int]]:
        """(row, sequence, position) of the edges this step computes inside prompts."""
        wanted = []
        first = 0
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            start = sequence.num_computed_tokens
            end = min(start + count, sequence.num_prompt_tokens - 1)
            for position in range(start, end):
                if position in self._edges:
                    wanted.append((first + position - start, sequence, position))
            first += count
        return wanted


@dataclass(slots=True)
class Run:
    """What a probed run gave. rows: (request, sample, position) → logits. tokens[i][j]: output ids
    of sample j of request i. num_steps, num_mixed_steps: all, and those with ≥ 2 sequences."""

    rows: dict[tuple[int, int, int], Logits] = field(default_factory=dict)
    tokens: list[list[list[int]]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    num_steps: int = 0

    def of(self, request: int, as_request: int = 0) -> dict[tuple[int, int, int], Logits]:
        """The rows of one request, renumbered."""
        return {
            (as_request, sample, position): row
            for (r, sample, position), row in self.rows.items()
            if r == request
        }


def run_requests(
    engine: Engine,
    probe: Probe,
    prompts: Sequence[list[int]],
    params: SamplingParams | Sequence[SamplingParams] = GREEDY,
    *,
    between: Callable[[Engine, list[Request]], None] | None = None,
    max_steps: int = 200_000,
) -> Run:
    """Adds all prompts, steps until everything ended. between: called after each step (to add,
    abort, shuffle). Raises RuntimeError when a request ends with an error or nothing ends."""
    each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
    requests = [engine.add(list(prompt), own) for prompt, own in zip(prompts, each, strict=True)]
    while engine.has_work:
        engine.step()
        if between is not None:
            between(engine, requests)
        if engine.num_steps > max_steps:
            raise RuntimeError(f"no end after {max_steps} steps")
    for request in requests:
        for generation in request.generations:
            if generation.error is not None:
                raise RuntimeError(generation.error)
    return Run(
        dict(probe.rows_seen),
        [[list(g.token_ids) for g in request.generations] for request in requests],
        requests,
        engine.num_steps,
    )
