"""Traces: how long the prompts and answers of many requests are, and which steps serve them.

Lengths are log-normal, as those of real chats are: most are short, a few very long. `serve` tells
the steps of a backlog without running them; the engine takes exactly these when a step has room for
all prompts that it admits. Pure; knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.ops.counts import Chunk


@dataclass(frozen=True, slots=True)
class Job:
    """One request: tokens of its prompt and of its answer, each at least 1."""

    num_prompt: int
    num_output: int

    @property
    def num_positions(self) -> int:
        """Positions in the KV cache when it ends: the last token is drawn, not computed."""
        return self.num_prompt + self.num_output - 1


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of lengths. sigma: of the logarithm. Cut to 1 … most."""

    median: float
    sigma: float
    most: int

    def draw(self, random: np.random.Generator, n: int) -> list[int]:
        drawn = np.rint(self.median * np.exp(self.sigma * random.standard_normal(n)))
        return [int(length) for length in np.clip(drawn, 1, self.most)]


def heavy_tailed(
    random: np.random.Generator, n: int, prompts: Lengths, outputs: Lengths
) -> list[Job]:
    """n requests; prompts and answers are independent."""
    drawn = zip(prompts.draw(random, n), outputs.draw(random, n), strict=True)
    return [Job(prompt, output) for prompt, output in drawn]


def serve(jobs: Sequence[Job], num_slots: int, *, static: bool) -> Iterator[dict[int, Chunk]]:
    """The steps of a backlog, first come, first served: number of the request → its part of the
    step. static: a new batch starts when all of the last one are done; else whoever is done makes
    room at once."""
    waiting, running = list(range(len(jobs))), dict[int, int]()  # number → tokens drawn
    while waiting or running:
        chunks = {i: Chunk(1, jobs[i].num_prompt + drawn) for i, drawn in running.items()}
        if not (static and running):
            while waiting and len(running) < num_slots:
                number = waiting.pop(0)
                running[number] = 0
                chunks[number] = Chunk(jobs[number].num_prompt, jobs[number].num_prompt)
        yield chunks
        running = {i: n + 1 for i, n in running.items() if n + 1 < jobs[i].num_output}


def utilisation(steps: Sequence[int], num_slots: int) -> float:
    """Share of the slots that worked. steps: sequences in each step."""
    return sum(steps) / (len(steps) * num_slots)


def mean_over_longest(jobs: Sequence[Job], num_slots: int) -> float:
    """The textbook's utilisation of static batching: over batches in order of arrival, the mean
    answer over the longest, weighted by how long the batch takes."""
    batches = [jobs[i : i + num_slots] for i in range(0, len(jobs), num_slots)]
    longest = sum(max(job.num_output for job in batch) for batch in batches)
    return sum(job.num_output for job in jobs) / (longest * num_slots)
