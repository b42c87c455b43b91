"""Faults that users met elsewhere, on the toy model: what is wrong with one request stays with it.

Numbers in the names are rows of a list of faults that users met in other engines: batching (5,
16, 17, 22, 23, 28), stop strings (45, 46), limits (49, 50, 35) and ends (82).
"""

from __future__ import annotations

import pytest
from toy import FULL, VOCAB, ToyModel, expected_tokens, letter, make_engine, run_all, window_group

from headrace.engine.config import Allocator
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.scheduler import Batching
from headrace.errors import CapacityError, PromptError, UsageError

BOTH = (FULL, window_group())
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 17 + i * i * 7 + i) % VOCAB for i in range(length)]


def solo(ids: list[int], params: SamplingParams = GREEDY, **options: object) -> list[int]:
    engine = make_engine(ToyModel(BOTH), **options)  # type: ignore[arg-type]
    request = engine.add(ids, params)
    run_all(engine)
    return request.generations[0].token_ids


def check_all(engine: Engine, model: ToyModel, requests: list[Request]) -> None:
    run_all(engine)
    for request in requests:
        for g in request.generations:
            want = expected_tokens(model, request, g.index, engine.config.max_model_len)
            assert g.token_ids == want


def test_row_5_two_equal_prompts_in_one_step() -> None:
    ids = prompt(1, 10)  # 2.5 blocks
    model = ToyModel(BOTH)
    engine = make_engine(model)
    a, b = engine.add(ids, GREEDY), engine.add(ids, GREEDY)
    run_all(engine)
    assert model.batches[0] == (10, 10)
    assert a.generations[0].token_ids == b.generations[0].token_ids == solo(ids)


@pytest.mark.parametrize("budget", [4, 7, 16, 17, 80])
@pytest.mark.parametrize("length", [31, 32, 33, 64, 65])
def test_rows_16_17_chunks_do_not_change_anything(length: int, budget: int) -> None:
    ids = prompt(2, length)
    model = ToyModel(BOTH)
    request = Request(0, None, ids, GREEDY, 0, frozenset(), None, 0.0)
    assert solo(ids, budget=budget) == expected_tokens(model, request, 0, 96)


def test_row_22_abort_in_every_state() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, budget=8, max_num_seqs=2)
    keep = engine.add(prompt(3, 5), GREEDY)
    queued = engine.add(prompt(4, 20), GREEDY)
    assert [d.finish_reason for d in engine.abort(queued)] == ["abort"]
    prefilling = engine.add(prompt(5, 30), GREEDY)
    engine.step()
    engine.step()
    assert 0 < prefilling.generations[0].sequence.num_computed_tokens < 30
    engine.abort(prefilling)
    decoding = engine.add(prompt(6, 3), GREEDY)
    engine.step()
    engine.step()
    assert 0 < len(decoding.generations[0].token_ids) < 12
    engine.abort(decoding)
    assert engine.abort(decoding) == []
    check_all(engine, model, [keep])
    assert engine.abort(keep) == []
    assert keep.generations[0].finish_reason is not None
    assert keep.generations[0].finish_reason.value == "length"
    for aborted in (queued, prefilling, decoding):
        assert aborted.finished
        assert aborted.generations[0].finish_reason is not None
    engine.check_invariants()
    assert engine.manager.free_counts == tuple(p.num_blocks for p in engine.manager.pools)


def test_abort_of_a_forked_request_ends_all_its_samples() -> None:
    engine = make_engine(ToyModel(BOTH))
    request = engine.add(prompt(3, 5), SamplingParams(n=3, seed=1, max_tokens=20))
    engine.step()
    engine.step()
    deltas = engine.abort(request)
    assert sorted((d.index, d.finish_reason) for d in deltas) == [(i, "abort") for i in range(3)]
    assert not engine.has_work
    engine.check_invariants()


@pytest.mark.parametrize("others", [1, 2, 7, 16])
def test_row_23_greedy_text_does_not_depend_on_neighbours(others: int) -> None:
    ids = prompt(7, 21)
    engine = make_engine(ToyModel(BOTH), max_num_seqs=8)
    for i in range(others):
        engine.add(prompt(i + 50, 3 + 5 * i % 40), GREEDY)
    request = engine.add(ids, GREEDY)
    run_all(engine)
    assert request.generations[0].token_ids == solo(ids)


def test_row_28_a_seed_is_the_request_s_own() -> None:
    ids = prompt(8, 9)
    seeded = SamplingParams(seed=42, max_tokens=12)
    engine = make_engine(ToyModel(BOTH), max_num_seqs=8)
    for i in range(7):
        engine.add(prompt(i, 4 + i), SamplingParams(max_tokens=12))
    request = engine.add(ids, seeded)
    run_all(engine)
    assert request.generations[0].token_ids == solo(ids, seeded)
    assert request.generations[0].token_ids != solo(ids, seeded.replace(seed=43))


def test_unseeded_requests_report_a_seed_that_repeats_them() -> None:
    ids = prompt(8, 9)
    engine = make_engine(ToyModel(BOTH))
    a, b = (engine.add(ids, SamplingParams(max_tokens=16)) for _ in range(2))
    run_all(engine)
    assert a.seed != b.seed
    assert a.generations[0].token_ids != b.generations[0].token_ids
    again = solo(ids, SamplingParams(max_tokens=16, seed=a.output().seed))
    assert again == a.generations[0].token_ids


def test_an_engine_seed_makes_unseeded_requests_repeatable_but_not_equal() -> None:
    def texts(seed: int) -> list[list[int]]:
        engine = make_engine(ToyModel(BOTH), seed=seed)
        requests = [engine.add(prompt(1, 5), SamplingParams(max_tokens=16)) for _ in range(3)]
        run_all(engine)
        return [r.generations[0].token_ids for r in requests]

    assert texts(5) == texts(5) != texts(6)
    assert len({tuple(t) for t in texts(5)}) == 3


def test_samples_share_the_prompt_and_differ() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model)
    request = engine.add(prompt(1, 10), SamplingParams(n=3, seed=1, max_tokens=8))
    engine.step()
    assert sum(model.batches[0]) == 10  # the prompt once, not three times
    held = [g.sequence.blocks for g in request.generations]
    assert [b.held(0) for b in held if b is not None] == [[0, 1, 2]] * 3
    check_all(engine, model, [request])
    assert model.num_copied == 4  # two of three samples copy the partly filled block, twice over
    assert len({tuple(g.token_ids) for g in request.generations}) == 3


def test_the_first_sample_is_the_one_that_n_1_gives() -> None:
    ids = prompt(1, 10)
    engine = make_engine(ToyModel(BOTH))
    request = engine.add(ids, SamplingParams(n=3, seed=9, max_tokens=8))
    run_all(engine)
    assert request.generations[0].token_ids == solo(ids, SamplingParams(seed=9, max_tokens=8))


# ---- stop strings and stop ids ---------------------------------------------------------------


def spelled(ids: list[int]) -> str:
    return "".join(map(letter, ids))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_45_46_stop_strings_in_the_stream(length: int) -> None:
    ids = prompt(9, 6)
    text = spelled(solo(ids))
    stop = text[5 : 5 + length]
    first = text.index(stop)
    engine = make_engine(ToyModel(BOTH))
    request = engine.add(ids, GREEDY.replace(stop=stop))
    deltas = run_all(engine)
    assert "".join(d.text for d in deltas) == text[:first] == request.generations[0].text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert all(d.finish_reason is None for d in deltas[:-1])
    engine.check_invariants()


def test_a_possible_stop_string_is_released_at_the_end() -> None:
    ids = prompt(9, 6)
    text = spelled(solo(ids))
    engine = make_engine(ToyModel(BOTH))
    request = engine.add(ids, GREEDY.replace(stop=[text[-2:] + "!"]))
    deltas = run_all(engine)
    assert deltas[-2].text == ""
    assert deltas[-1].text == text[-2:]
    assert request.generations[0].text == text
    assert deltas[-1].finish_reason == "length"


def test_an_abort_releases_what_was_held_back() -> None:
    ids = prompt(9, 6)
    text = spelled(solo(ids))
    engine = make_engine(ToyModel(BOTH))
    request = engine.add(ids, GREEDY.replace(stop=[text[:3] + "!"]))
    engine.step()
    engine.step()
    assert request.generations[0].text == ""
    [last] = engine.abort(request)
    assert (last.text, last.finish_reason, last.stop_reason) == (text[:2], "abort", None)


def test_end_ids_stop_ids_and_ignore_eos() -> None:
    ids = prompt(9, 6)
    free = solo(ids)
    end = free[4]
    cut = free[: free.index(end) + 1]
    cases = [
        (GREEDY, frozenset({end}), cut, None, False),
        (GREEDY.replace(ignore_eos=True), frozenset({end}), free, None, False),
        (GREEDY.replace(stop_token_ids=[end]), frozenset[int](), cut, end, False),
        (
            GREEDY.replace(stop_token_ids=[end], include_stop_str_in_output=True),
            frozenset[int](),
            cut,
            end,
            True,
        ),
    ]
    for params, eos, want, reason, shown in cases:
        engine = make_engine(ToyModel(BOTH), eos_ids=eos)
        request = engine.add(ids, params)
        run_all(engine)
        output = request.output().outputs[0]
        assert output.token_ids == want
        stopped = want is cut
        assert output.finish_reason == ("stop" if stopped else "length")
        assert output.stop_reason == reason
        assert output.text == spelled(want[:-1] if stopped and not shown else want)


def test_min_tokens_holds_end_ids_back() -> None:
    ids = prompt(9, 6)
    end = solo(ids)[0]
    engine = make_engine(ToyModel(BOTH), eos_ids=frozenset({end}))
    request = engine.add(ids, GREEDY.replace(min_tokens=5))
    run_all(engine)
    assert end not in request.generations[0].token_ids[:5]
    assert len(request.generations[0].token_ids) >= 5


# ---- limits ----------------------------------------------------------------------------------


def test_row_49_the_context_limit_is_named() -> None:
    engine = make_engine(ToyModel(BOTH), max_model_len=64)
    free = SamplingParams(max_tokens=None, temperature=0)
    fits = engine.add(prompt(1, 63), free)
    run_all(engine)
    assert len(fits.generations[0].token_ids) == 1
    assert fits.output().outputs[0].finish_reason == "length"
    also = engine.add(prompt(1, 63), free.replace(max_tokens=1))
    run_all(engine)
    assert also.generations[0].token_ids == fits.generations[0].token_ids
    for length, params, asked in (
        (64, free, "at least 1 more"),
        (65, free, "at least 1 more"),
        (400, free.replace(max_tokens=3), "3 more"),
        (63, free.replace(max_tokens=2), "2 more"),
    ):
        with pytest.raises(PromptError) as caught:
            engine.add(prompt(1, length), params)
        assert "limit is 64 tokens" in str(caught.value)
        assert f"has {length} and" in str(caught.value)
        assert asked in str(caught.value)
    assert not engine.has_work


def test_row_50_an_empty_prompt_is_refused_and_the_next_one_runs() -> None:
    engine = make_engine(ToyModel(BOTH))
    with pytest.raises(PromptError, match="empty"):
        engine.add([], GREEDY)
    request = engine.add([1], GREEDY)
    run_all(engine)
    assert len(request.generations[0].token_ids) == 12


def test_row_35_ids_out_of_range_are_refused_and_a_neighbour_does_not_notice() -> None:
    alone = make_engine(ToyModel(BOTH))
    expected = alone.add([3, 1, 4], GREEDY)
    run_all(alone)
    engine = make_engine(ToyModel(BOTH))
    neighbour = engine.add([3, 1, 4], GREEDY)
    engine.step()
    for bad in (-5, VOCAB, 10**6):
        with pytest.raises(PromptError, match=f"id {bad}, outside"):
            engine.add([1, bad, 2], GREEDY)
    for name, value in (
        ("stop_token_ids", [10**6]),
        ("logit_bias", {10**6: 1.0}),
        ("banned_token_ids", [VOCAB]),
        ("allowed_token_ids", [VOCAB]),
    ):
        with pytest.raises(UsageError, match=name):
            engine.add([1], GREEDY.replace(**{name: value}))
        engine.step()
    run_all(engine)
    assert neighbour.generations[0].token_ids == expected.generations[0].token_ids
    assert not engine.has_work


def test_what_can_never_fit_is_refused_at_once_and_what_fits_just_so_runs() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, num_blocks=[6, 8])  # 24 positions
    with pytest.raises(CapacityError, match="needs 25 positions"):
        engine.add(prompt(1, 14), GREEDY)
    long = GREEDY.replace(max_tokens=21)
    requests = [engine.add(prompt(i, 4), long) for i in range(4)]
    check_all(engine, model, requests)
    assert sum(r.num_preemptions for r in requests) > 0


def test_more_samples_than_places_are_refused() -> None:
    engine = make_engine(ToyModel(BOTH), max_num_seqs=2)
    with pytest.raises(UsageError, match="max_num_seqs = 2"):
        engine.add([1], GREEDY.replace(n=3))


def test_a_full_queue_says_so() -> None:
    engine = make_engine(ToyModel(BOTH), max_queue=2)
    engine.add([1], GREEDY)
    engine.add([1], GREEDY)
    with pytest.raises(CapacityError, match="queue is full"):
        engine.add([1], GREEDY)
    engine.step()
    engine.add([1], GREEDY)


# ---- failures stay where they are ------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 3])
def test_a_row_that_is_not_finite_ends_its_request_alone(samples: int) -> None:
    ids = prompt(1, 8)
    bad_token = 60
    model = ToyModel(BOTH, bad_token=bad_token)
    engine = make_engine(model, max_num_seqs=6)
    good = engine.add([t % 50 for t in ids], GREEDY.replace(banned_token_ids=[bad_token]))
    bad = engine.add([1, 2, bad_token], SamplingParams(n=samples, max_tokens=5, seed=1))
    check_all(engine, model, [good])
    assert len(bad.generations) == samples
    for g in bad.output().outputs:
        assert g.finish_reason == "error"
        assert g.error is not None
        assert "not finite" in g.error
        assert g.token_ids == []
    engine.check_invariants()


def test_prompt_logits_that_are_not_finite_end_their_request_alone() -> None:
    model = ToyModel(BOTH, bad_token=60)
    engine = make_engine(model)
    good = engine.add([1, 2, 3], GREEDY.replace(prompt_logprobs=1, banned_token_ids=[60]))
    bad = engine.add([1, 60, 2], GREEDY.replace(prompt_logprobs=1))
    check_all(engine, model, [good])
    output = bad.output().outputs[0]
    assert output.finish_reason == "error"
    assert output.error is not None
    assert "prompt logits" in output.error
    assert good.prompt_logprobs is not None
    assert len(good.prompt_logprobs) == 3


def test_samples_fork_from_their_own_row_beside_one_that_failed() -> None:
    """As many rows are drawn from as there were, but not the same ones."""
    engine = make_engine(ToyModel(BOTH, bad_token=60))
    bad = engine.add([1, 60, 2], GREEDY.replace(prompt_logprobs=1))
    two = engine.add([1, 2, 3], GREEDY.replace(n=2, banned_token_ids=[60]))
    run_all(engine)
    assert bad.output().outputs[0].finish_reason == "error"
    alone = solo([1, 2, 3], GREEDY.replace(banned_token_ids=[60]))
    assert [g.token_ids for g in two.generations] == [alone, alone]


def test_no_candidate_left_ends_the_request_alone() -> None:
    engine = make_engine(ToyModel(BOTH, bad_token=60))
    request = engine.add(
        [1], GREEDY.replace(allowed_token_ids=[5], min_tokens=3, stop_token_ids=[5])
    )
    run_all(engine)
    output = request.output().outputs[0]
    assert output.finish_reason == "error"
    assert output.error is not None
    assert "banned" in output.error


def test_a_step_that_raises_ends_its_requests_and_not_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, max_num_seqs=2)
    lost = [engine.add(prompt(i, 6), GREEDY.replace(n=1 + i)) for i in range(2)]
    waiting = engine.add(prompt(9, 6), GREEDY)
    model.fail_next = RuntimeError("planted failure")
    deltas = engine.step()
    assert [d.finish_reason for d in deltas] == ["error"]
    assert "planted failure" in (deltas[0].error or "")
    assert "in step" in caplog.text, "the operator's log has the traceback"
    check_all(engine, model, [lost[1], waiting])
    engine.check_invariants()


def test_a_text_that_cannot_be_decoded_ends_its_request_alone() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model)
    bad, good = engine.add(prompt(1, 6), GREEDY), engine.add(prompt(2, 6), GREEDY)

    class Broken:
        def push(self, token_id: int) -> str:
            raise IndexError("no such token")

        def finish(self) -> str:
            return ""

    bad.generations[0].stream = Broken()
    check_all(engine, model, [good])
    output = bad.output().outputs[0]
    assert output.finish_reason == "error"
    assert "no such token" in (output.error or "")
    engine.check_invariants()


# ---- the account -----------------------------------------------------------------------------


def test_row_82_every_end_has_a_reason_and_the_account_adds_up() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, num_blocks=[8, 10], eos_ids=frozenset({7, 8}))
    requests = [engine.add(prompt(i, 8), SamplingParams(seed=i, max_tokens=20)) for i in range(6)]
    run_all(engine)
    for request in requests:
        output = request.output()
        m = output.metrics
        assert output.outputs[0].finish_reason in ("stop", "length")
        assert m.num_prompt_tokens == 8
        assert m.num_output_tokens == len(output.outputs[0].token_ids)
        parts = [t for t in (m.queue_s, m.prefill_s, m.decode_s) if t is not None]
        assert len(parts) == 3
        assert min(parts) >= 0
        assert m.total_s == pytest.approx(sum(parts))
        assert m.time_to_first_token_s == pytest.approx(parts[0] + parts[1])
    computed = sum(r.num_computed_tokens for r in requests)
    assert computed == sum(map(sum, model.batches))
    least = sum(8 + len(r.generations[0].token_ids) - 1 for r in requests)
    assert (computed > least) == any(r.num_preemptions for r in requests)


def test_a_history_changed_before_the_window_is_computed_again_and_the_account_says_so() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, prefix_caching=True)
    first = engine.add(prompt(1, 40), GREEDY)
    run_all(engine)
    history = first.prompt_token_ids + first.generations[0].token_ids
    more = engine.add([*history, 3], GREEDY)
    run_all(engine)
    assert more.num_cached_tokens == 51  # the last token drawn was never computed
    changed = [*history[:20], 59, *history[21:50], 4]
    other = engine.add(changed, GREEDY)
    check_all(engine, model, [first, more, other])
    assert other.num_cached_tokens == 0
    assert "window" in (other.cache_note or "")


def test_prompt_logprobs_after_a_cached_prompt_are_complete() -> None:
    engine = make_engine(ToyModel(BOTH), prefix_caching=True)
    scored = GREEDY.replace(prompt_logprobs=2)
    cold = engine.add(prompt(1, 20), scored)
    run_all(engine)
    warm = engine.add(prompt(1, 20), scored)
    run_all(engine)
    assert warm.prompt_logprobs == cold.prompt_logprobs
    assert cold.prompt_logprobs is not None
    assert len(cold.prompt_logprobs) == 20
    assert cold.prompt_logprobs[0] is None
    assert warm.num_cached_tokens == 0
    assert "logprobs" in (warm.cache_note or "")


def test_an_aborted_turn_leaves_its_history() -> None:
    engine = make_engine(ToyModel(BOTH), prefix_caching=True)
    cut = engine.add(prompt(1, 20), GREEDY)
    for _ in range(4):
        engine.step()
    engine.abort(cut)
    history = cut.prompt_token_ids + cut.generations[0].token_ids
    following = engine.add([*history, 1, 2], GREEDY)
    run_all(engine)
    assert following.num_cached_tokens == len(history) - 1


def test_an_interrupted_step_aborts_and_keeps_no_half_written_history() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, prefix_caching=True)
    request = engine.add(prompt(1, 20), GREEDY)
    engine.step()
    model.fail_next = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert request.output().outputs[0].finish_reason == "abort"
    assert not engine.has_work
    engine.check_invariants()
    again = engine.add(prompt(1, 20), GREEDY)
    check_all(engine, model, [again])
    assert again.num_cached_tokens == 0


def test_the_useful_share_of_the_cache() -> None:
    def usage(allocator: Allocator) -> tuple[int, int]:
        engine = make_engine(ToyModel(), allocator=allocator)  # 16 bytes per position
        engine.add(prompt(1, 10), GREEDY.replace(n=2, max_tokens=23))
        engine.step()
        engine.step()
        use = engine.kv_usage()
        return use.held_bytes // 16, use.used_bytes // 16

    # paged: 8 shared positions, and 3 of a block of 4 for each sample; contiguous: 32 for each
    assert usage(Allocator.PAGED) == (16, 14)
    assert usage(Allocator.CONTIGUOUS) == (64, 22)


# ---- comparisons -----------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", list(Allocator))
@pytest.mark.parametrize("batching", list(Batching))
def test_every_allocator_and_policy_gives_the_same_text(
    allocator: Allocator, batching: Batching
) -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, allocator=allocator, batching=batching)
    requests = [
        engine.add(prompt(i, 5 + 7 * i), SamplingParams(n=1 + i % 2, seed=i, max_tokens=3 + 4 * i))
        for i in range(6)
    ]
    check_all(engine, model, requests)
    assert engine.manager.free_counts == tuple(p.num_blocks for p in engine.manager.pools)


def test_continuous_batching_needs_fewer_steps_than_static() -> None:
    def steps(batching: Batching) -> int:
        engine = make_engine(ToyModel(), batching=batching, max_num_seqs=4)
        for i in range(16):
            engine.add(prompt(i, 4), GREEDY.replace(max_tokens=60 if i % 4 == 0 else 4))
        run_all(engine)
        return engine.num_steps

    # static: four batches of 60; continuous: the long ones overlap with everything else
    assert steps(Batching.STATIC) == 4 * 60
    assert steps(Batching.CONTINUOUS) < 150


def test_no_cache_computes_every_position_again() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, allocator=Allocator.NONE)
    engine.add(prompt(1, 10), GREEDY)
    run_all(engine)
    assert model.batches == [(10 + i,) for i in range(12)]


def test_logprobs_name_the_chosen_token_first_and_the_top_ones() -> None:
    engine = make_engine(ToyModel(BOTH))
    request = engine.add(prompt(1, 5), SamplingParams(seed=3, max_tokens=6, logprobs=3, trace=2))
    run_all(engine)
    output = request.output().outputs[0]
    assert output.logprobs is not None
    assert output.trace is not None
    assert len(output.logprobs) == len(output.trace) == 6
    total = 0.0
    for token, entry, trace in zip(output.token_ids, output.logprobs, output.trace, strict=True):
        assert next(iter(entry)) == token
        assert len(entry) in (3, 4)
        assert entry[token].decoded_token == letter(token)
        assert trace.token == token
        total += entry[token].logprob
    assert output.cumulative_logprob == pytest.approx(total)
