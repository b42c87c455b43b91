"""From a plan to the requests of a run: prompts, when they are due, and facts about them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from headrace.bench.serve.arrivals import offsets
from headrace.bench.serve.client import Client
from headrace.bench.serve.dataset import (
    DEFAULT_IDS,
    Prompt,
    Source,
    chosen,
    random_prompts,
    repeated_prefixes,
)  # fmt: skip
from headrace.bench.serve.discovery import ServedModel, exact_lengths
from headrace.bench.serve.files import read_prompts, read_sharegpt, read_trace
from headrace.bench.serve.jobs import CHAT
from headrace.bench.serve.plan import Data, Wanted


@dataclass(slots=True)
class Workload:
    """prompts: of the run; warm_up: before it. due_s: offsets of an open loop. shared: the warm-up
    uses prompts (or prefixes) of the run. exact: whether the lengths of random words were made
    exact with the server's /tokenize (None = there are none)."""

    prompts: list[Prompt]
    warm_up: list[Prompt] = field(default_factory=list)
    due_s: list[float] | None = None
    ignore_eos: bool | None = None
    shared: bool = False
    exact: bool | None = None


async def make_workload(client: Client, wanted: Wanted, model: ServedModel) -> Workload:
    """The requests of a run, the same for the same plan and seed. Raises UsageError."""
    data, load = wanted.data, wanted.load
    chat = wanted.endpoint == CHAT
    source = Source(chat or data.text_prompts, chat, _ids(data, model))
    if data.trace is not None:
        work = _traced(data, source, load.num_warmups)
    elif data.is_random:
        work = _random(data, source, load.num_warmups)
    else:
        work = _from_file(data, load.num_warmups)
    if wanted.ignore_eos is not None:
        work.ignore_eos = wanted.ignore_eos
    if work.due_s is None and not math.isinf(load.request_rate):
        rng = random.Random(f"arrivals {data.seed}")
        work.due_s = offsets(len(work.prompts), load.request_rate, load.burstiness, rng)
    if source.words and any(prompt.num_prompt is not None for prompt in work.prompts):
        both = [*work.warm_up, *work.prompts]
        sized, work.exact = await exact_lengths(client, model.name, both)
        work.warm_up = sized[: len(work.warm_up)]
        work.prompts = sized[len(work.warm_up) :]
    return work


def _traced(data: Data, source: Source, num_warmups: int) -> Workload:
    assert data.trace is not None
    timed = read_trace(data.trace, source, data.seed)[: data.count]
    made = any(prompt.num_prompt is not None for _, prompt in timed)
    return Workload(
        [prompt for _, prompt in timed],
        random_prompts(num_warmups, data.lengths, source, data.seed + 1),
        [time_s for time_s, _ in timed],
        ignore_eos=True if made else None,
    )


def _random(data: Data, source: Source, num_warmups: int) -> Workload:
    count = (100 if data.count is None else data.count) + num_warmups
    if data.name == "random":
        made = random_prompts(count, data.lengths, source, data.seed)
    else:
        made = repeated_prefixes(count, data.prefixes, data.lengths.num_output, source, data.seed)
    return Workload(
        made[num_warmups:],
        made[:num_warmups],
        ignore_eos=True,
        shared=data.name == "prefix_repetition" and num_warmups > 0,
    )


def _from_file(data: Data, num_warmups: int) -> Workload:
    assert data.path is not None
    read = (read_prompts if data.name == "file" else read_sharegpt)(data.path)
    num_output = data.lengths.num_output
    return Workload(
        chosen(read, data.count, num_output, data.seed),
        chosen(read, num_warmups, num_output, data.seed),
        shared=num_warmups > 0,
    )


def _ids(data: Data, model: ServedModel) -> tuple[int, int]:
    """From which random ids are drawn: a small vocabulary has no room to leave its low end out."""
    size = data.vocabulary or model.num_ids
    if size is None:
        return DEFAULT_IDS
    return (DEFAULT_IDS[0] if size > 2 * DEFAULT_IDS[0] else 0, size)
