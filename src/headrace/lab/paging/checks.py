"""The same logits with every allocator and with shared beginnings, on the run's own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.bench.measure import GREEDY
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.sizing import ceil_div
from headrace.verify.probe import Run, run_requests
from headrace.verify.result import difference
from headrace.verify.subject import Subject


def same_everywhere(subject: Subject) -> tuple[bool, str]:
    """Six requests in a pool that holds about two of them, so that they wait, move, and are thrown
    out, against each of them alone."""
    text, size = subject.workload.text, subject.block_size
    lengths = [5, 2 * size + 3, 3 * size, 4 * size - 1, 7, 5 * size + 2]
    prompts = [text[31 * i : 31 * i + n] for i, n in enumerate(lengths)]
    params = [GREEDY.replace(max_tokens=n) for n in (24, 6, 18, 9, 30, 12)]
    alone = [
        run_requests(*subject.engine(max_num_seqs=1), [p], [q])
        for p, q in zip(prompts, params, strict=True)
    ]
    longest = ceil_div(max(lengths) + 30, size)
    told, worst, preemptions, copied = [], 0.0, 0, 0
    for allocator in ("contiguous", "growing", "paged"):
        pools = (2 * longest,) * len(subject.program.kv_groups)
        run, moved = _probed(subject, prompts, params, pools, kv_allocator=allocator)
        worst = max(worst, _apart(alone, run))
        preemptions += sum(request.num_preemptions for request in run.requests)
        copied += moved
        told.append(f"{allocator} {run.num_steps} steps, {moved} blocks copied")
    passed = worst == 0.0 and preemptions > 0 and copied > 0  # else nobody was in the way
    return passed, f"max |Δ| {worst:.3g}; {'; '.join(told)}; {preemptions} preemptions"


def same_shared(subject: Subject) -> tuple[bool, str]:
    """Prompts that leave their common beginning inside a block, with the prefix tree and without,
    against each of them alone."""
    text, size = subject.workload.text, subject.block_size
    common = text[: 2 * size + size // 2]
    prompts = [common + text[60 + 40 * i : 60 + 40 * i + n] for i, n in enumerate((3, 9, 2 * size))]
    prompts.append(list(prompts[0]))
    params = [GREEDY.replace(max_tokens=n) for n in (6, 9, 4, 8)]
    alone = [
        run_requests(*subject.engine(max_num_seqs=1), [p], [q])
        for p, q in zip(prompts, params, strict=True)
    ]
    worst, cached = 0.0, []
    for caching in (False, True):
        run, _ = _probed(subject, prompts, params, enable_prefix_caching=caching, max_num_seqs=2)
        worst = max(worst, _apart(alone, run))
        cached.append(sum(request.num_cached_tokens for request in run.requests))
    passed = worst == 0.0 and cached[0] == 0 and cached[1] > 0
    return passed, f"max |Δ| {worst:.3g}; {cached[1]} prompt tokens were shared"


def _probed(
    subject: Subject,
    prompts: list[list[int]],
    params: Sequence[SamplingParams],
    num_blocks: tuple[int, ...] | None = None,
    **options: Any,
) -> tuple[Run, int]:
    """A run with all invariants checked after every step, and the blocks that were copied."""

    def invariants(engine: Engine, requests: list[Request]) -> None:
        engine.check_invariants()

    engine, probe = subject.engine(num_blocks=num_blocks, **options)
    run = run_requests(engine, probe, prompts, params, between=invariants)
    return run, engine.num_copied_blocks


def _apart(alone: Sequence[Run], together: Run) -> float:
    """Largest difference of a logit; infinite where a text differs."""
    worst = 0.0
    for number, single in enumerate(alone):
        worst = max(worst, difference(single.rows, together.of(number)))
        if single.tokens[0] != together.tokens[number]:
            return float("inf")
    return worst
