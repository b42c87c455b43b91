"""Planner: a question → the rows of the hardware budget table.

What memory each takes, whether it fits, its times, and what bounds them. What to make of the rows
is advice.py's business.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.limits.plan.formats import main_format
from headrace.limits.plan.hardware import Hardware
from headrace.limits.plan.memory import MemoryModel, MemoryPlan
from headrace.limits.plan.paper import paper_of
from headrace.limits.plan.question import MAX_CONCURRENCY, Question
from headrace.limits.plan.row import Row, Times
from headrace.limits.plan.times import (
    BoundClock,
    Clock,
    EstimateClock,
    Load,
    burst_s,
    chunks_of,
    decode_contexts,
    decode_step,
    joining_s,
    knows_peaks,
    limiter,
    prompt_step,
    rates_of,
    tpot_s,
)
from headrace.limits.rates import MachineRates
from headrace.models.outline import ModelOutline
from headrace.ops.cost import CostModel, unit_of
from headrace.ops.counts import Unit


class Planner:
    """Answers one question row by row; keeps the cost models it needs. One thread at a time."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.program: ModelOutline = question.model.program
        self.weights = main_format(self.program)
        self.paper = paper_of(self.program, question.kv_format)
        self._costs: dict[int | None, CostModel] = {}
        self._memory: dict[bool, MemoryModel] = {}
        self._clocks: dict[str, Clock] = {}
        self._rows: dict[tuple[str, int], Row] = {}

    def rows(self) -> tuple[Row, ...]:
        """Every hardware with every concurrency, in the order asked."""
        q = self.question
        return tuple(self.row(h, n) for h in q.hardware for n in q.concurrency)

    def asked(self, question: Question) -> Planner:
        """Another question's planner; what both count the same is counted once."""
        other = Planner(question)
        if other.program is self.program:
            other._memory = self._memory
            same = ("kv_format", "calibration")
            if all(getattr(question, name) == getattr(self.question, name) for name in same):
                other._costs, other._clocks = self._costs, self._clocks
        return other

    def row(self, hardware: Hardware, concurrency: int) -> Row:
        key = hardware.name, concurrency
        if key not in self._rows:
            self._rows[key] = self._row(hardware, concurrency)
        return self._rows[key]

    def _row(self, hardware: Hardware, concurrency: int) -> Row:
        q = self.question
        load = self.load(hardware, concurrency)
        times = self.times(hardware, load)
        targets = q.ttft_s is not None or q.tpot_s is not None
        known = times is not None and hardware.memory_bytes is not None
        within = None
        if targets and known:
            within = largest(lambda n: self._good(hardware, n), MAX_CONCURRENCY)
        limit = hardware.memory_bytes
        return Row(
            hardware=hardware,
            concurrency=concurrency,
            memory=self.memory(hardware, q.context, concurrency),
            times=times,
            max_concurrency=None if limit is None else self.max_concurrency(hardware, limit),
            max_context=None if limit is None else self.max_context(hardware, limit, concurrency),
            missed=None if times is None or not targets else self._missed(times),
            within_targets=within,
            output=q.output,
        )

    def load(self, hardware: Hardware, concurrency: int) -> Load:
        q = self.question
        budget = q.budget(hardware.kind, concurrency)
        return Load(concurrency, q.context, q.prompt, q.output, budget)

    # ---- memory ---------------------------------------------------------------------------------

    def memory(self, hardware: Hardware, context: int, concurrency: int) -> MemoryPlan:
        q = self.question
        if q.formula == "paper":
            return self.paper.memory(context, concurrency)
        packed = hardware.kind == "cpu"
        if packed not in self._memory:
            self._memory[packed] = MemoryModel(self.program, packed=packed)
        return self._memory[packed].plan(
            context=context,
            concurrency=concurrency,
            kv_format=q.kv_format,
            step_tokens=q.budget(hardware.kind, concurrency),
            block_size=q.block_size,
        )

    def max_concurrency(self, hardware: Hardware, limit: float) -> int:
        """Most requests of the whole context that fit; 0: none."""
        context = self.question.context
        return largest(lambda n: self.memory(hardware, context, n).total <= limit, MAX_CONCURRENCY)

    def max_context(self, hardware: Hardware, limit: float, concurrency: int) -> int:
        """Longest context of so many requests that fits, at most the model's; 0: none."""
        most = self.program.max_context
        return largest(lambda c: self.memory(hardware, c, concurrency).total <= limit, most)

    # ---- times ----------------------------------------------------------------------------------

    def times(self, hardware: Hardware, load: Load) -> Times | None:
        rates = rates_of(hardware, self.weights)
        if rates is None:
            return None
        if self.question.formula == "paper":
            return self._paper_times(load, rates)
        costs, clock = self.costs(hardware), self.clock(hardware, rates)
        step = tpot_s(load, clock)
        decode = limiter(costs.step(chunks_of(decode_step(load))), rates)
        if not knows_peaks(rates):
            return Times(None, None, step, None, None, decode)
        prefill = limiter(costs.step(chunks_of(prompt_step(load))), rates)
        alone = joining_s(load.alone(), clock)
        if load.concurrency == 1:
            burst = joining = alone
        else:
            burst, joining = burst_s(load, clock), joining_s(load, clock)
        return Times(burst, joining, step, alone, prefill, decode)

    def _paper_times(self, load: Load, rates: MachineRates) -> Times:
        context, n = decode_contexts(load)[1], load.concurrency
        step = self.paper.tpot_s(context, n, rates)
        decode = self.paper.decode_limiter(context, n)
        if not knows_peaks(rates):
            return Times(None, None, step, None, None, decode)
        peak = peak_of(self.weights.name, rates)
        one = self.paper.ttft_s(load.prompt, rates, peak)
        prefill = self.paper.prefill_limiter(load.prompt, rates, peak)
        return Times(one * (n + 1) / 2, one, step, one, prefill, decode)

    def costs(self, hardware: Hardware) -> CostModel:
        cache = None if hardware.cache_bytes is None else int(hardware.cache_bytes)
        if cache not in self._costs:
            kv = self.question.kv_format
            self._costs[cache] = CostModel(self.program, kv_format=kv, cache_bytes=cache)
        return self._costs[cache]

    def clock(self, hardware: Hardware, rates: MachineRates) -> Clock:
        """Of a hardware: estimates where this machine was calibrated, else the bound."""
        if hardware.name not in self._clocks:
            costs, calibration = self.costs(hardware), self.question.calibration
            self._clocks[hardware.name] = (
                EstimateClock(costs, rates, calibration)
                if calibration is not None and hardware.measured
                else BoundClock(costs, rates)
            )
        return self._clocks[hardware.name]

    def _missed(self, times: Times) -> tuple[str, ...]:
        """The targets that these times miss; a time that is not known misses."""
        q = self.question
        pairs = (("TTFT", times.joining_s, q.ttft_s), ("TPOT", times.tpot_s, q.tpot_s))
        return tuple(
            name
            for name, time, target in pairs
            if target is not None and (time is None or time > target)
        )

    def _good(self, hardware: Hardware, concurrency: int) -> bool:
        """Whether so many requests fit and meet the targets."""
        limit, context = hardware.memory_bytes or 0, self.question.context
        if self.memory(hardware, context, concurrency).total > limit:
            return False
        rates = rates_of(hardware, self.weights)
        assert rates is not None
        q, load = self.question, self.load(hardware, concurrency)
        if q.formula == "paper":
            times = self.times(hardware, load)
            return times is not None and not self._missed(times)
        clock = self.clock(hardware, rates)
        if q.tpot_s is not None and tpot_s(load, clock) > q.tpot_s:
            return False
        if q.ttft_s is None:
            return True
        return knows_peaks(rates) and joining_s(load, clock) <= q.ttft_s


def peak_of(weights: str, rates: MachineRates) -> float:
    """The peak at which matrices of a number format are multiplied."""
    peaks = {
        Unit.INT8: rates.int8_ops_per_s,
        Unit.BF16: rates.bf16_ops_per_s,
        Unit.F32: rates.f32_ops_per_s,
    }
    return peaks[unit_of(weights)]


def largest(good: Callable[[int], bool], most: int) -> int:
    """The largest n ≤ most that is good, where all below a good one are good too; 0: none."""
    low, high = 0, 1
    while high < most and good(high):
        low, high = high, min(2 * high, most)
    if high == most and good(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
