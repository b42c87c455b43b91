"""Requests that begin alike, with the prefix tree and without: memory held and prompt tokens
computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.engine.config import EngineOptions
from headrace.engine.sizing import ceil_div
from headrace.lab.lab import Lab
from headrace.lab.paging.serving import noise, serve_counting
from headrace.lab.paging.strategies import BLOCK, CONTEXT
from headrace.lab.parts.random_model import engine_on
from headrace.lab.parts.traces import Job, Lengths, heavy_tailed, serve
from headrace.lab.statistics import exact
from headrace.lab.values import Findings, Table
from headrace.models.load import LoadedModel

#: Sequences at a time, different beginnings, their length (not a whole number of blocks).
SLOTS, NUM_BEGINNINGS, BEGINNING = 16, 4, 264


def chats(lab: Lab) -> list[Job]:
    """Short questions behind a long common beginning."""
    jobs = heavy_tailed(lab.random(1), 48 if lab.quick else 192, Lengths(24, 0.6, 96),
                        Lengths(48, 0.8, 256))  # fmt: skip
    return [Job(BEGINNING + job.num_prompt, job.num_output) for job in jobs]


def shared_positions(jobs: Sequence[Job]) -> tuple[int, int]:
    """(without, with sharing) positions held, summed over all steps, of jobs whose prompts begin
    with one of NUM_BEGINNINGS texts, SLOTS at a time. Whole blocks of the beginning are held once
    for all that run."""
    whole = BEGINNING // BLOCK * BLOCK
    alone = together = 0
    for step in serve(jobs, SLOTS, static=False):
        going_on = {i: c for i, c in step.items() if c.context < jobs[i].num_positions}
        held = [BLOCK * ceil_div(c.context, BLOCK) for c in going_on.values()]
        alone += sum(held)
        beginnings = {i % NUM_BEGINNINGS for i in going_on}
        together += sum(h - whole for h in held) + whole * len(beginnings)
    return alone, together


def measure_sharing(lab: Lab, model: LoadedModel, found: Findings) -> None:
    """Serves the chats with sharing and without; adds the table `sharing` and what it saves."""
    jobs = chats(lab)
    beginnings = noise(lab, model, [BEGINNING] * NUM_BEGINNINGS)
    own = noise(lab, model, [job.num_prompt - BEGINNING for job in jobs], stream=7)
    prompts = [beginnings[i % NUM_BEGINNINGS] + ids for i, ids in enumerate(own)]
    runs = {}
    for sharing in (False, True):
        options = EngineOptions(
            max_model_len=CONTEXT,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=SLOTS * 512,
            enable_prefix_caching=sharing,
            num_threads=1,
        )
        engine = engine_on(model, options)
        runs[sharing] = serve_counting(engine, prompts, jobs, [job.num_output for job in jobs])
    less = sum(runs[False].held) / sum(runs[True].held)
    found.measured["sharing"] = exact(less)
    position = runs[False].total // (CONTEXT * SLOTS)
    found.tables.append(
        Table(
            "sharing",
            ["sharing", "positions held at a time", "at most", "prompt tokens computed", "steps"],
            [
                [
                    "on" if sharing else "off",
                    round(float(np.mean(run.held)) / position),
                    max(run.held) // position,
                    run.computed,
                    len(run.held),
                ]
                for sharing, run in runs.items()
            ],
            f"{len(jobs)} requests, {SLOTS} at a time; each prompt begins with one of "
            f"{NUM_BEGINNINGS} texts of {BEGINNING} tokens. Positions that several hold count "
            f"once; what only the prefix tree still keeps can be had at any time and is not "
            f"counted.",
        )
    )
    found.conclude(
        f"Sharing the beginnings held {less:.2f}× less memory for the same requests, and "
        f"{runs[False].computed / runs[True].computed:.2f}× fewer prompt tokens were computed."
    )
