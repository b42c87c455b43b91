"""Measurements run the steps they claim: counted on a toy model behind the real engine."""

from __future__ import annotations

import pytest

from engine.toy import FULL, ToyModel, make_engine, window_group
from headrace.bench.cases import Case, Kind
from headrace.bench.measure import run_case
from headrace.errors import CapacityError, HeadraceError


def test_a_prompt_is_one_step_until_its_next_token() -> None:
    model = ToyModel()
    sample = run_case(make_engine(model, prefix_caching=True), Case(Kind.PREFILL, 20, 0))
    assert model.batches == [(20,)]
    assert sample.num_tokens == 20
    assert sample.ttft_s == sample.seconds > 0
    assert sample.tpot_s is None


def test_a_long_prompt_goes_in_the_engines_chunks() -> None:
    model = ToyModel()
    run_case(make_engine(model, budget=32, prefix_caching=True), Case(Kind.PREFILL, 70, 0))
    assert model.batches == [(32,), (32,), (6,)]


def test_generation_counts_the_steps_after_the_first_token() -> None:
    model = ToyModel()
    sample = run_case(make_engine(model, prefix_caching=True), Case(Kind.DECODE, 0, 9))
    assert model.batches == [(1,)] * 10
    assert sample.num_tokens == 9
    assert sample.tpot_s == pytest.approx(sample.seconds / 9)
    assert sample.ttft_s is None


def test_generation_at_a_depth_starts_behind_a_prompt() -> None:
    model = ToyModel()
    run_case(make_engine(model, prefix_caching=True), Case(Kind.DECODE, 0, 4, depth=25))
    assert model.batches == [(25,), *[(1,)] * 4]


@pytest.mark.parametrize("groups", [(FULL,), (FULL, window_group())])
def test_a_prompt_at_a_depth_finds_its_positions_in_the_cache(groups: tuple[object, ...]) -> None:
    model = ToyModel(groups)  # type: ignore[arg-type]
    engine = make_engine(model, prefix_caching=True)
    for _ in range(2):  # nothing is left behind by the first
        model.batches.clear()
        run_case(engine, Case(Kind.PREFILL, 11, 0, depth=30))
        assert model.batches == [(30,), (11,)]
        assert engine.kv_usage().held_bytes == 0


def test_a_batch_is_measured_whole_and_in_parts() -> None:
    model = ToyModel()
    case = Case(Kind.BATCH, 16, 8, batch=4)
    sample = run_case(make_engine(model, budget=32, prefix_caching=True), case)
    # Two prompts a step; while the last two are computed, the first two already decode.
    assert model.batches[0] == (16, 16)
    assert sample.num_tokens == 4 * (16 + 8)
    full = [b for b in model.batches if b == (1, 1, 1, 1)]
    assert sample.num_decode_steps == len(full) > 0
    assert sample.prefill_s is not None
    assert 0 < sample.prefill_s < sample.prefill_s + sample.decode_s <= sample.seconds
    assert sample.ttft_s is not None
    assert 0 < sample.ttft_s <= sample.seconds
    # Before the first full step every sequence has its prompt, and the early ones some tokens.
    assert 16 <= sample.decode_start <= 18


def test_a_batch_at_a_depth_finds_all_its_sequences_in_the_cache() -> None:
    model = ToyModel()
    engine = make_engine(model, budget=64, max_num_seqs=3, prefix_caching=True)
    run_case(engine, Case(Kind.BATCH, 5, 3, depth=18, batch=3))
    assert model.batches[0] == (18, 18, 18)
    assert model.batches[1] == (5, 5, 5)
    assert engine.kv_usage().held_bytes == 0


def test_sequences_that_do_not_fit_together_are_refused() -> None:
    engine = make_engine(ToyModel(), num_blocks=(12,), prefix_caching=True)
    with pytest.raises(CapacityError, match="does not hold all sequences at once"):
        run_case(engine, Case(Kind.BATCH, 10, 20, batch=4))


def test_a_request_that_fails_is_an_error_and_leaves_nothing_running() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    model.fail_next = ValueError("broken")
    with pytest.raises(HeadraceError, match=r"pp20: a request failed: .*broken"):
        run_case(engine, Case(Kind.PREFILL, 20, 0))
    assert not engine.has_work


def test_an_interrupt_leaves_nothing_running() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    model.fail_next = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_case(engine, Case(Kind.BATCH, 10, 20, batch=4))
    assert not engine.has_work
    assert engine.requests() == []
