"""The same logits with and without the cache, and those of the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.lab.lab import Lab
from headrace.lab.statistics import (
    largest,
)
from headrace.lab.values import Check
from headrace.verify.probe import GREEDY as EIGHT_TOKENS
from headrace.verify.probe import Run, run_requests
from headrace.verify.result import Logits, difference
from headrace.verify.subject import Subject

_TOKENS = 12


def compare(lab: Lab) -> list[Check]:
    """Raises RuntimeError where a path under test breaks."""
    subject = lab.subject()
    with lab.stage("logits with and without the cache", 0.6):
        prompts = _prompts(subject)
        anew = [_run(subject, [prompt], "none") for prompt in prompts]
        alone, pair = (_run(subject, some, "paged") for some in (prompts[:1], prompts))
        checks = [
            _same_steps("batch 1: cached = no cache", anew, alone),
            _same_steps("batch 2: cached = no cache, each alone", anew, pair),
            _same_steps(
                "batch 2: no cache = no cache, each alone", anew, _run(subject, prompts, "none")
            ),
        ]
    with lab.stage("logits against the reference", 0.4):
        return [*checks, _against_reference(subject, prompts, pair)]


def _prompts(subject: Subject) -> list[list[int]]:
    """Two of unequal length: one ends inside a block, the other goes over a border of tiles."""
    text = subject.workload.text
    return [text[:37], text[100:223]]


def _run(subject: Subject, prompts: list[list[int]], allocator: str) -> Run:
    engine = subject.engine(max_num_seqs=len(prompts), kv_allocator=allocator)
    return run_requests(*engine, prompts, EIGHT_TOKENS.replace(max_tokens=_TOKENS))


def _same_steps(name: str, alone: Sequence[Run], together: Run) -> Check:
    """Compares the logits of every request of `together` with the run of it alone, step by step for
    as long as both have drawn the same tokens; tells the first step that differs."""
    worst, num_rows, firsts = 0.0, 0, list[int]()
    for request, histories in enumerate(together.tokens):
        expected, [history] = alone[request].tokens[0][0], histories
        rows = zip(_in_order(alone[request], 0), _in_order(together, request), strict=True)
        for step, (a, b) in enumerate(rows):
            if expected[:step] != history[:step]:
                break
            num_rows += 1
            error = difference({(0, 0, step): a}, {(0, 0, step): b})
            if error > 0:
                worst = max(worst, error)
                firsts.append(step)
    told = f"max |Δ| {worst:.3g} over {num_rows} steps"
    if firsts:
        told += f"; the first that differs is number {min(firsts) + 1}"
    return Check(name, not firsts, told)


def _in_order(run: Run, request: int) -> list[Logits]:
    """Rows that tokens were drawn from, in order of their positions."""
    own = {position: row for (r, _, position), row in run.rows.items() if r == request}
    return [own[position] for position in sorted(own)]


def _against_reference(subject: Subject, prompts: list[list[int]], run: Run) -> Check:
    """Every cached step of both requests against torch's dense mathematics."""
    import torch

    from headrace.verify.reference import expected_logits

    num_rows, errors, bounds = 0, list[float](), list[float]()
    for request, prompt in enumerate(prompts):
        rows = _in_order(run, request)
        ids = prompt + run.tokens[request][0][:-1]
        at = list(range(len(prompt) - 1, len(ids)))
        expected = expected_logits(subject.program, ids, at, subject.kv_format)
        error = float((torch.tensor(np.stack(rows)).double() - expected.plain).abs().max())
        bounds.append(expected.bound)
        errors.append(error / expected.bound)
        num_rows += len(rows)
    worst = largest(errors)
    return Check(
        "batch 2, cached = reference (torch, no cache) within the formats' bound",
        worst <= 1.0,
        f"error ÷ bound {worst:.2f} over {num_rows} steps; bounds "
        + ", ".join(f"{b:.2f}" for b in bounds),
    )
