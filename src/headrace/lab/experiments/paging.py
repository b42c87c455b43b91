"""paging: how much of the KV memory that is given out holds something, and what is gained by
sharing it?

One engine serves the same heavy-tailed trace with every allocator. Where blocks lie does not depend
on what the weights are, so the trace runs on a tiny model with random weights; that all allocators
give the same text is checked on the run's own model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.bench.measure import GREEDY
from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.sizing import ceil_div
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.random_model import engine_on, random_model
from headrace.lab.parts.traces import Job, Lengths, heavy_tailed, serve
from headrace.lab.plots import style
from headrace.lab.statistics import exact
from headrace.lab.values import Check, Findings, Kind, Prediction, Table
from headrace.models.load import LoadedModel
from headrace.ops.kv import KVFormat
from headrace.verify.probe import Run, run_requests
from headrace.verify.result import difference
from headrace.verify.subject import Subject

CONTEXT, BLOCK = 2048, 16
#: The pool: so many whole contexts.
NUM_CONTEXTS = 4
#: Sharing: sequences at a time, different beginnings, their length (not a whole number of blocks).
SLOTS, NUM_BEGINNINGS, BEGINNING = 16, 4, 264
#: About the means of public chat logs: 160 and 340 tokens.
_PROMPTS, _OUTPUTS = Lengths(115, 0.8, 512), Lengths(210, 1.0, 1500)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to give out memory. told: the engine is told how long each answer will be, which
    nobody knows in practice; otherwise it must be ready for the whole context."""

    name: str
    allocator: str
    told: bool = False
    block_size: int = BLOCK

    @property
    def doubles(self) -> bool:
        return self.allocator == "growing"

    def held(self, job: Job, positions: int) -> int:
        """Positions held for a request of which `positions` are computed, with nobody in the
        way."""
        size = self.block_size
        needed = ceil_div(positions, size)
        match self.allocator:
            case "contiguous":
                whole = min(job.num_positions, CONTEXT) if self.told else CONTEXT
                return size * ceil_div(whole, size)
            case "growing":
                columns = ceil_div(job.num_prompt, size)
                while columns < needed:
                    columns *= 2
                return size * min(columns, CONTEXT // size)
        return size * needed


STRATEGIES = (
    Strategy("reserve the context", "contiguous"),
    Strategy("reserve what is needed (oracle)", "contiguous", told=True),
    Strategy("growing", "growing"),
    Strategy("paged, blocks of 16", "paged"),
    Strategy("paged, blocks of 128", "paged", block_size=128),
)


def useful_share(jobs: Sequence[Job], strategy: Strategy) -> float:
    """Positions computed ÷ positions held, summed over the steps of all requests: from the lengths
    alone. After step k of a request num_prompt + k positions are computed; with its last it ends.
    """
    computed = held = 0
    for job in jobs:
        for step in range(job.num_output - 1):
            computed += job.num_prompt + step
            held += strategy.held(job, job.num_prompt + step)
    return computed / held


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


def trace(lab: Lab) -> list[Job]:
    """The requests of the first part."""
    return heavy_tailed(lab.random(), 64 if lab.quick else 256, _PROMPTS, _OUTPUTS)


def chats(lab: Lab) -> list[Job]:
    """Short questions behind a long common beginning."""
    jobs = heavy_tailed(lab.random(1), 48 if lab.quick else 192, Lengths(24, 0.6, 96),
                        Lengths(48, 0.8, 256))  # fmt: skip
    return [Job(BEGINNING + job.num_prompt, job.num_output) for job in jobs]


class Paging(Experiment):
    name = "paging"
    title = "Paged KV memory: what is given out and what is used"
    question = (
        "How much of the KV memory that requests hold has something in it, and what does sharing "
        "add?"
    )
    claim = (
        "Reserving each request's maximum leaves 20-40 % of the memory useful; blocks on demand "
        "leave all of it but a part of each last block (PagedAttention, SOSP 2023), and requests "
        "that begin alike can hold their beginning once."
    )
    quick_s, full_s = 30.0, 90.0
    faults = ("freed-block", "stale-block-table", "long-match")
    try_this = (
        "headrace lab run paging --seed 2: another trace of the same distribution",
        "headrace lab run paging --inject freed-block: a block is given back while it is read",
        "headrace generate MODEL -p … --kv-allocator growing: any allocator by hand, the same text",
        "headrace serve MODEL --block-size 128: fewer, larger blocks; each last one wastes more",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        jobs = trace(lab)
        found = [
            Prediction(
                _key(strategy),
                f"useful share of the memory held, {strategy.name}",
                useful_share(jobs, strategy),
                "share",
                "summed over the lengths of the trace, as if nobody were in the way"
                + ("; who finds no room for twice as much takes less" * strategy.doubles),
                Kind.AT_LEAST if strategy.doubles else Kind.VALUE,
                tolerance=1.01,
            )
            for strategy in STRATEGIES
        ]
        alone, together = shared_positions(chats(lab))
        found.append(
            Prediction(
                "sharing",
                f"memory held without sharing ÷ with, {NUM_BEGINNINGS} common beginnings of "
                f"{BEGINNING} tokens, {SLOTS} sequences at a time",
                alone / together,
                "×",
                "summed over the steps of the trace: beginnings in use counted once",
                tolerance=1.01,
            )
        )
        return found

    def check(self, lab: Lab) -> list[Check]:
        subject = lab.subject()
        checks = []
        with lab.stage("the same logits with every allocator", 0.6):
            for name, check in (
                ("every allocator gives the same logits, invariants hold after every step",
                 _same_everywhere),
                ("shared beginnings give the same logits, invariants hold after every step",
                 _same_shared),
            ):  # fmt: skip
                try:
                    passed, told = check(subject)
                except (RuntimeError, AssertionError) as error:  # of what is under test
                    passed, told = False, f"{type(error).__name__}: {error}"
                checks.append(Check(name, passed, told))
        return checks

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        model, jobs = random_model(max_context=CONTEXT), trace(lab)
        with lab.stage("the trace with every allocator", 0.8):
            runs = {}
            for number, strategy in enumerate(STRATEGIES):
                runs[strategy] = _run(lab, model, jobs, strategy)
                lab.tell(f"trace: {strategy.name}", (number + 1) / len(STRATEGIES))
        _report_trace(lab, jobs, runs, found)
        with lab.stage("common beginnings", 0.2):
            _measure_sharing(lab, model, found)
        return found


# ---- correctness --------------------------------------------------------------------------------


def _same_everywhere(subject: Subject) -> tuple[bool, str]:
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


def _same_shared(subject: Subject) -> tuple[bool, str]:
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


# ---- the trace ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Served:
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


def _run(lab: Lab, model: LoadedModel, jobs: Sequence[Job], strategy: Strategy) -> _Served:
    """The trace on a pool of NUM_CONTEXTS contexts. Clients leave when they have what they
    wanted."""
    [group] = model.kv_groups
    options = EngineOptions(
        max_model_len=CONTEXT,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        block_size=strategy.block_size,
        kv_cache_memory=NUM_CONTEXTS * CONTEXT * group.bytes_per_position(KVFormat.BF16),
        kv_allocator=strategy.allocator,
        enable_prefix_caching=False,
        num_threads=1,
    )
    prompts = _noise(lab, model, [job.num_prompt for job in jobs])
    limits = [job.num_output if strategy.told else None for job in jobs]
    return _serve(engine_on(model, options), prompts, jobs, limits)


def _serve(
    engine: Engine,
    prompts: Sequence[list[int]],
    jobs: Sequence[Job],
    limits: Sequence[int | None],
) -> _Served:
    """limits: max_tokens of each request."""
    requests = [
        engine.add(ids, GREEDY.replace(max_tokens=limit))
        for ids, limit in zip(prompts, limits, strict=True)
    ]
    served = _Served(engine.kv_usage().total_bytes)
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


def _report_trace(
    lab: Lab, jobs: Sequence[Job], runs: Mapping[Strategy, _Served], found: Findings
) -> None:
    rows: list[list[str | float | int | None]] = []
    for strategy, run in runs.items():
        found.measured[_key(strategy)] = exact(run.useful_share)
        rows.append(
            [
                strategy.name,
                f"{run.useful_share:.1%}",
                f"{run.while_waiting(run.used) / run.total:.1%}",
                round(run.while_waiting(run.running), 1),
                len(run.held),
                run.preemptions,
                run.copied,
            ]
        )
    found.tables.append(
        Table(
            "allocators",
            ["allocator", "useful share of what is held", "of the whole pool",
             "sequences at a time", "steps", "preemptions", "blocks copied"],
            rows,
            f"{len(jobs)} requests at once, prompts of {min(j.num_prompt for j in jobs)} … "
            f"{max(j.num_prompt for j in jobs)} and answers of {min(j.num_output for j in jobs)} … "
            f"{max(j.num_output for j in jobs)} tokens; a pool of {NUM_CONTEXTS} contexts of "
            f"{CONTEXT:,}. Shares are summed over steps; pool and sequences over those in which "
            f"somebody waited. Counted, not sampled: the same seed gives the same figures.",
        )
    )  # fmt: skip
    reserve, oracle, growing, paged, _ = runs.values()
    found.conclude(
        f"On this trace {reserve.useful_share:.0%} of the memory reserved to the maximum was "
        f"useful, {growing.useful_share:.0%} of what grew by doubling, {paged.useful_share:.0%} of "
        f"the paged; knowing every answer's length beforehand would give "
        f"{oracle.useful_share:.0%}. People are told 20-40 % for reserving; it is the mean of what "
        f"is held over the maximum, so it follows from lengths and context alone."
    )
    others = [heavy_tailed(lab.random(100 + i), len(jobs), _PROMPTS, _OUTPUTS) for i in range(20)]
    first, *_, fourth, _ = runs
    spans = [[useful_share(other, strategy) for other in others] for strategy in (first, fourth)]
    told = [f"{min(span):.0%} … {max(span):.0%}" for span in spans]
    found.conclude(
        f"Twenty other traces of the same distribution would, by their lengths, leave {told[0]} of "
        f"the reserved memory useful and {told[1]} of the paged."
    )
    more = paged.while_waiting(paged.running) / reserve.while_waiting(reserve.running)
    found.conclude(
        f"The same pool ran {more:.1f}× as many sequences at a time paged as reserved, and the "
        f"trace took {len(reserve.held) / len(paged.held):.1f}× fewer steps."
    )
    _draw_trace(lab, runs)


def _draw_trace(lab: Lab, runs: Mapping[Strategy, _Served]) -> None:
    shown = [(s, r) for s, r in runs.items() if s.block_size == BLOCK]
    with lab.figure(
        "memory",
        "KV memory over the steps of one trace: held by requests, and the part of it in which "
        "something lies.",
        "A panel per allocator: memory held and memory used, per cent of the pool, over steps.",
        columns=len(shown),
    ) as (_, axes):
        last = max(len(run.held) for _, run in shown)
        for number, (strategy, run) in enumerate(shown):
            axis, steps = axes[number], range(len(run.held))
            colour = style(number)["color"]
            held, used = ([100 * v / run.total for v in kind] for kind in (run.held, run.used))
            axis.fill_between(steps, held, color=colour, alpha=0.25, label="held", linewidth=0)
            axis.fill_between(steps, used, color=colour, alpha=0.9, label="used", linewidth=0)
            axis.set_title(f"{strategy.name}\n{run.useful_share:.0%} useful", fontsize=9)
            axis.set_xlim(0, last)
            axis.set_ylim(0, 102)
            axis.set_xlabel("step")
            if number:
                axis.set_yticklabels([])
        axes[0].set_ylabel("% of the pool")
        axes[-1].legend(loc="upper right")


# ---- sharing ------------------------------------------------------------------------------------


def _measure_sharing(lab: Lab, model: LoadedModel, found: Findings) -> None:
    jobs = chats(lab)
    beginnings = _noise(lab, model, [BEGINNING] * NUM_BEGINNINGS)
    own = _noise(lab, model, [job.num_prompt - BEGINNING for job in jobs], stream=7)
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
        runs[sharing] = _serve(engine, prompts, jobs, [job.num_output for job in jobs])
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


# ---- small things -------------------------------------------------------------------------------


def _key(strategy: Strategy) -> str:
    name = "oracle" if strategy.told else strategy.allocator
    return f"useful_{name}_{strategy.block_size}"


def _noise(
    lab: Lab, model: LoadedModel, lengths: Sequence[int], stream: int = 5
) -> list[list[int]]:
    random = lab.random(stream)
    return [random.integers(0, model.vocab_size, n).tolist() for n in lengths]
