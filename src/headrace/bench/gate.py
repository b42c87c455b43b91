"""The gate before every speed: the quick exact rungs of `verify`, on the very configuration that is
about to be measured (model, threads, instruction set, KV format, batch).

No speed is printed where a rung fails: a fast wrong answer is no answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.errors import HeadraceError
from headrace.verify.ladder import SYMPTOMS, Report, run_ladder
from headrace.verify.probe import GREEDY, run_requests
from headrace.verify.result import RungResult, difference
from headrace.verify.subject import Subject

#: The rungs, each a second or two on a small model. `headrace verify` climbs the whole ladder.
QUICK_RUNGS = (
    "uncached = cached",
    "whole = chunked",
    "batch 1 = batch n",
    "one thread = n",
    "fused = unfused",
)


class CheckFailed(HeadraceError):
    """Rungs failed; the sentence names them, and what the first one suggests."""


def check(
    subject: Subject, max_batch: int, *, on_start: Callable[[str], None] = lambda name: None
) -> Report:
    """Runs the rungs, and one with as many sequences as the largest batch. Raises CheckFailed."""
    report = run_ladder(
        subject, reference=False, only=lambda name: name in QUICK_RUNGS, on_start=on_start
    )
    if max_batch > 1:
        name = f"alone = batch of {max_batch}"
        on_start(name)
        report = replace(report, rungs=(*report.rungs, _batch_rung(subject, name, max_batch)))
    if not report.passed:
        first = report.failed[0]
        hint = SYMPTOMS.get(first.name) or SYMPTOMS["batch 1 = batch n"]
        names = ", ".join(repr(rung.name) for rung in report.failed)
        raise CheckFailed(
            f"No speed is printed, because this configuration computes wrong: failed {names} "
            f"({hint}; {' '.join(first.detail.split())})."
        )
    return report


def _batch_rung(subject: Subject, name: str, count: int) -> RungResult:
    started = time.perf_counter()
    try:
        result = together(subject, name, count)
    except Exception as error:  # the path under test, as in run_ladder
        result = RungResult.crashed(name, True, error)
    return replace(result, seconds=time.perf_counter() - started)


def together(subject: Subject, name: str, count: int) -> RungResult:
    """`count` short prompts of unequal lengths one after the other = all in one batch."""
    text = subject.workload.text
    longest = min(2 * subject.block_size + 3, len(text))
    starts = [7 * i % (len(text) - longest + 1) for i in range(count)]
    prompts = [text[at : at + 3 + 5 * i % (longest - 2)] for i, at in enumerate(starts)]
    params = GREEDY.replace(max_tokens=4)
    alone = run_requests(*subject.engine(max_num_seqs=1), prompts, params)
    tokens = max(sum(len(p) for p in prompts), count)
    engine, probe = subject.engine(
        model=subject.model(tokens, max_requests=count),
        max_num_seqs=count,
        max_num_batched_tokens=tokens,
    )
    full = 0

    def count_full(engine: Engine, requests: list[Request]) -> None:
        nonlocal full
        full += len(engine.scheduler.running) == count

    batch = run_requests(engine, probe, prompts, params, between=count_full)
    return RungResult.judge(name, difference(alone.rows, batch.rows), full, f"{count} prompts")
