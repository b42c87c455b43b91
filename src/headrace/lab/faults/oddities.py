"""Two symptoms without a wrong number: a cache that gains nothing, memory unlike the estimate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.engine.core import Engine
from headrace.lab.lab import Lab
from headrace.lab.parts.tiny import tiny_model
from headrace.lab.statistics import Interval, exact, median_interval, ratio_interval
from headrace.lab.values import Findings, Table
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.verify.faults import NO_FAULT
from headrace.verify.probe import GREEDY
from headrace.verify.subject import Subject

#: Positions in the cache when steps with and without it are timed.
HISTORIES = (8, 256)
_STEPS = 8
#: Tokens of a text whose KV memory is looked at: the last block of 16 holds five of them.
HELD = 85


@dataclass(frozen=True, slots=True)
class _Timed:
    """Seconds of a step: medians of runs with the cache and without, in turns."""

    cached: list[float]
    recomputed: list[float]

    @property
    def gain(self) -> Interval:
        return ratio_interval(self.recomputed, self.cached)


def promised_gain(costs: CostModel, rates: MachineRates, history: int) -> float:
    """Bound of a step that recomputes `history` positions ÷ bound of one that has them."""
    middle = history + _STEPS // 2
    whole = bound(costs.step([Chunk(middle, middle)]), rates).bound_s
    return whole / bound(costs.step([Chunk(1, middle)]), rates).bound_s


def measure_gains(lab: Lab, findings: Findings) -> None:
    """Steps with a cache and without, of the run's model and of a tiny one."""
    real = lab.subject(fault=NO_FAULT)
    program = tiny_model()
    tiny = Subject(program, program.vocab_size, num_threads=lab.threads, name="tiny model")
    rows: list[list[Any]] = []
    for subject in (real, tiny):
        for history in HISTORIES:
            timed = _time(subject, history, 8 if lab.quick else 20)
            gain = findings.measured[f"gain {subject.name} {history}"] = timed.gain
            cached, again = median_interval(timed.cached), median_interval(timed.recomputed)
            rows.append([subject.name, history, 1e3 * cached.value, 1e3 * again.value, gain.value,
                         gain.low, gain.high])  # fmt: skip
            findings.conclude(*_sentence(subject.name, history, gain))
    columns = ["model", "positions", "cached, ms", "no cache, ms", "gain", "low", "high"]
    findings.tables.append(
        Table(
            "cache against no cache",
            columns,
            rows,
            f"Whole steps of the engine, batch 1; low, high: {gain.what}, {gain.n} runs in turns.",
        )
    )


def _sentence(name: str, history: int, gain: Interval) -> tuple[str, bool]:
    return (
        f"{name}, {history} positions: a step without the cache takes {gain:.2f} times as long as "
        "one with it.",
        gain.low > 1 or gain.high < 1,
    )


def _time(subject: Subject, history: int, rounds: int) -> _Timed:
    prompt = subject.workload.text[:history]
    engines: dict[str, Engine] = {}
    for allocator in ("paged", "none"):
        engines[allocator], _ = subject.engine(kv_allocator=allocator, max_num_seqs=1)
    seconds: dict[str, list[float]] = {allocator: [] for allocator in engines}
    for number in range(rounds + 1):
        for allocator, engine in engines.items():
            steps = _step_times(engine, prompt)
            if number:  # the first warms up
                seconds[allocator].append(float(np.median(steps)))
    return _Timed(seconds["paged"], seconds["none"])


def _step_times(engine: Engine, prompt: Sequence[int]) -> list[float]:
    request = engine.add(list(prompt), GREEDY.replace(max_tokens=_STEPS))
    drawn = request.generations[0].token_ids
    while not drawn:
        engine.step()
    times = []
    while engine.has_work:
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    return times


def held_share(block_size: int) -> float:
    """Positions of the blocks that HELD positions take, over HELD."""
    return -(-HELD // block_size) * block_size / HELD


def measure_memory(lab: Lab, findings: Findings) -> None:
    """What engines hold for one text, over 2 · L · K · D · S · 2 bytes."""
    subject = lab.subject(fault=NO_FAULT)
    text = subject.workload.text
    groups = subject.program.kv_groups
    formula = sum(2 * len(g.layers) * g.kv_heads * g.k_dim * HELD * 2 for g in groups)
    rows: list[list[Any]] = []
    causes: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("paged", "blocks of 16", "bf16", {}),
        ("f32", "element type", "f32", {"kv_cache_dtype": "f32"}),
        ("block 128", "blocks of 128", "bf16", {"block_size": 128}),
        ("reserved", "reserve to the maximum", "bf16", {"kv_allocator": "contiguous"}),
    )  # fmt: skip
    for key, cause, kind, options in causes:
        engine, _ = subject.engine(max_num_seqs=1, **options)
        request = engine.add(text[: HELD - 1], GREEDY.replace(max_tokens=64))
        while request.generations[0].sequence.num_computed_tokens < HELD:
            engine.step()
        held = engine.kv_usage().held_bytes
        engine.abort(request)
        findings.measured[key] = exact(held / formula)
        rows.append([cause, kind, held / 2**20, held / formula])
    findings.tables.append(
        Table(
            "memory unlike the estimate",
            ["cause", "keys and values", "held, MiB", "over the formula"],
            rows,
            f"One text of {HELD} positions; 2 · L · K · D · S · 2 bytes = {formula / 2**20:.2f} "
            f"MiB. The reserve is for the {HELD - 1 + 64} positions that the request may reach.",
        )
    )
