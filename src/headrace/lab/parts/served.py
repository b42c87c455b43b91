"""Serving a trace on a real engine, with a note of every step. Greedy, ends of text ignored, so the
lengths are the trace's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.bench.measure import GREEDY
from headrace.engine.account import StepAccount, StepRecord
from headrace.engine.core import Engine
from headrace.errors import HeadraceError
from headrace.lab.parts.traces import Job


@dataclass(slots=True)
class Served:
    """seconds: from the first step to the last token of all. token_ids, ttft_s: by request; ttft_s
    from its arrival to its first token. num_preemptions: of all requests."""

    seconds: float
    token_ids: list[list[int]]
    ttft_s: list[float]
    num_preemptions: int
    steps: list[StepRecord] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        return sum(map(len, self.token_ids))


def serve_backlog(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    jobs: Sequence[Job],
    *,
    between: Callable[[Engine], None] | None = None,
) -> Served:
    """All requests arrive at once; steps until all have ended. prompts: ids, at least as many as
    the job's num_prompt, which is cut from them. between: called after every step. Replaces the
    engine's account. Raises HeadraceError when a request fails."""
    steps: list[StepRecord] = []
    engine.account = StepAccount(on_step=steps.append)
    begin = time.perf_counter()
    requests = [
        engine.add(list(ids[: job.num_prompt]), GREEDY.replace(max_tokens=job.num_output))
        for ids, job in zip(prompts, jobs, strict=True)
    ]
    while engine.has_work:
        engine.step()
        if between is not None:
            between(engine)
    seconds = time.perf_counter() - begin
    engine.account = None
    outputs = [request.output() for request in requests]
    for output in outputs:
        if output.outputs[0].error is not None:
            raise HeadraceError(f"A request of the trace failed: {output.outputs[0].error}")
    return Served(
        seconds,
        [list(output.outputs[0].token_ids) for output in outputs],
        [output.metrics.time_to_first_token_s or 0.0 for output in outputs],
        sum(request.num_preemptions for request in requests),
        steps,
    )
