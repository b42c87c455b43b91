"""Bound and serial sum: by hand, and what must hold for every step and machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.limits.bound import Bound, Peaks, bound, bound_of, peak
from headrace.limits.rates import MachineRates
from headrace.limits.workloads import (
    batch_limit,
    decode_limit,
    decode_steps,
    prefill_limit,
    run_limit,
)
from headrace.ops.contract import Rows
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, OpCost, StepCost, Unit
from headrace.ops.recording import Add, Attend, Linear, Value
from small_program import small_program

RATES = MachineRates(100.0, 1000.0, 500.0, 250.0, 2, "avx512", 1 << 20)
X = Value(0, Rows.TOKENS, 4, 0, 0)
LINEAR = Linear(0, X, "w", None, X)
ATTEND = Attend(0, X, 0, 0, 1, 1, 1.0, None, None, X)
ADD = Add(0, X, X, X)
SMALL = CostModel(small_program())


def test_by_hand() -> None:
    step = StepCost(
        (
            OpCost(LINEAR, Unit.F32, operations=4000, weight_bytes=100),  # 4 s at int8, 1 s
            OpCost(ATTEND, Unit.F32, operations=500, kv_read_bytes=300),  # 1 s at bf16, 3 s
            OpCost(ADD, Unit.F32, operations=250, activation_bytes=50, kv_write_bytes=50),  # 1, 1
        )
    )
    assert bound(step, RATES) == Bound(memory_s=5.0, compute_s=6.0, serial_s=8.0)
    assert bound(step, RATES).bound_s == 6.0
    assert bound(step, RATES).limited_by == "compute"
    # Each at the peak of its own format, f32: 16 s and 2 s and 1 s.
    own = bound(step, RATES, Peaks.OWN)
    assert own == Bound(memory_s=5.0, compute_s=19.0, serial_s=16.0 + 3.0 + 1.0)
    assert bound_of(step.ops[1:2], RATES) == Bound(3.0, 1.0, 3.0)
    assert bound_of((), RATES).bound_s == 0


@pytest.mark.parametrize("unit", Unit)
def test_the_standard_peaks_ignore_the_formats_of_matmuls_and_attention(unit: Unit) -> None:
    own = {Unit.INT8: 1000.0, Unit.BF16: 500.0, Unit.F32: 250.0}[unit]
    for op, standard in ((LINEAR, 1000.0), (ATTEND, 500.0), (ADD, own)):
        assert peak(OpCost(op, unit), RATES) == standard
        assert peak(OpCost(op, unit), RATES, Peaks.OWN) == own


@st.composite
def machines(draw: st.DrawFn) -> MachineRates:
    rate = st.floats(1e3, 1e12)
    return MachineRates(draw(rate), draw(rate), draw(rate), draw(rate), 1, "any", 0)


@st.composite
def steps(draw: st.DrawFn) -> StepCost:
    contexts = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    return SMALL.step([Chunk(draw(st.integers(1, c)), c) for c in contexts])


@settings(deadline=None)
@given(steps(), machines(), st.sampled_from(Peaks))
def test_no_overlap_between_ops_is_never_faster(
    step: StepCost, machine: MachineRates, peaks: Peaks
) -> None:
    limit = bound(step, machine, peaks)
    slack = 1 + 1e-9
    assert limit.bound_s <= limit.serial_s * slack
    assert limit.serial_s <= (limit.memory_s + limit.compute_s) * slack
    twice = replace(
        machine,
        read_bytes_per_s=2 * machine.read_bytes_per_s,
        int8_ops_per_s=2 * machine.int8_ops_per_s,
        bf16_ops_per_s=2 * machine.bf16_ops_per_s,
        f32_ops_per_s=2 * machine.f32_ops_per_s,
    )
    assert bound(step, twice, peaks).bound_s == pytest.approx(limit.bound_s / 2)
    assert bound(step, twice, peaks).serial_s == pytest.approx(limit.serial_s / 2)


class TestRuns:
    """A machine so slow at moving that seconds are bytes: every limit is a count."""

    RATES = MachineRates(1.0, 1e30, 1e30, 1e30, 1, "any", 0)

    def test_generation_is_the_sum_of_its_steps(self) -> None:
        limit = decode_limit(SMALL, self.RATES, 5, depth=60, batch=3)
        steps = [SMALL.step([Chunk(1, c)] * 3).total.num_bytes for c in range(61, 66)]
        assert limit.bound_s == sum(steps)
        assert limit.num_tokens == 15
        assert limit.tok_per_s == 15 / sum(steps)
        assert limit.memory_bound_share == 1

    def test_a_prompt_reads_the_weights_once(self) -> None:
        limit = prefill_limit(SMALL, self.RATES, 100, depth=7)
        cost = SMALL.step([Chunk(100, 107)], num_logit_rows=1)
        assert (limit.bound_s, limit.num_tokens) == (cost.total.num_bytes, 100)

    def test_a_batch_takes_its_first_tokens_from_the_prompts(self) -> None:
        limit = batch_limit(SMALL, self.RATES, 4, 16, 3)
        costs = [SMALL.step([Chunk(16, 16)] * 4)]
        costs += [SMALL.step([Chunk(1, c)] * 4) for c in (17, 18)]
        assert limit.bound_s == sum(c.total.num_bytes for c in costs)
        assert limit.num_tokens == 4 * (16 + 3)
        assert costs[0].ops[-1].op.output is not None
        heads = [c for c in costs[0].ops if isinstance(c.op, Linear) and c.op.layer is None]
        assert [c.operations for c in heads] == [2 * 4 * 101 * 40]

    def test_one_output_token_needs_no_further_step(self) -> None:
        alone = batch_limit(SMALL, self.RATES, 2, 16, 1)
        assert alone.bound_s == SMALL.step([Chunk(16, 16)] * 2).total.num_bytes

    def test_each_step_has_its_own_limit(self) -> None:
        """One step limited by arithmetic, one by memory: max per step, not max of sums."""
        rates = MachineRates(1.0, 1e30, 1e30, 1.0, 1, "any", 0)
        prompt, token = SMALL.step([Chunk(500, 500)]), SMALL.step([Chunk(1, 501)])
        bounds = [bound(prompt, rates, Peaks.OWN), bound(token, rates, Peaks.OWN)]
        fast = replace(rates, f32_ops_per_s=bounds[0].compute_s / bounds[0].memory_s / 2)
        limits = [bound(c, fast, Peaks.OWN) for c in (prompt, token)]
        assert [b.limited_by for b in limits] == ["compute", "memory"]
        run = run_limit([prompt, token], fast, 501, Peaks.OWN)
        assert run.bound_s == limits[0].compute_s + limits[1].memory_s
        assert run.memory_bound_share == pytest.approx(limits[1].memory_s / run.bound_s)
        assert run.serial_s == limits[0].serial_s + limits[1].serial_s
        assert run.serial_tok_per_s == 501 / run.serial_s

    def test_a_run_without_steps_has_no_limit(self) -> None:
        with pytest.raises(ValueError, match="without steps"):
            run_limit(decode_steps(SMALL, 0), self.RATES, 0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["read_bytes_per_s", "int8_ops_per_s", "f32_ops_per_s"])
def test_a_rate_must_be_positive(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{field} must be a positive number"):
        replace(RATES, **{field: value})


def test_threads_and_cache_must_make_sense() -> None:
    with pytest.raises(UsageError, match="num_threads must be at least 1"):
        replace(RATES, num_threads=0)
    with pytest.raises(UsageError, match="llc_bytes must not be negative"):
        replace(RATES, llc_bytes=-1)
