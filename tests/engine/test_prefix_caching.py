"""The prefix tree inside the engine: who reuses what, in which step, and what never changes.

Texts are checked against the toy's oracle, which knows no cache: whatever was reused, tokens are
those of a cold run. Fault rows 1, 2, 3, 5, 20 (users met them elsewhere) are named at their tests.
"""

from __future__ import annotations

import numpy as np
import pytest
from toy import FULL, VOCAB, ToyModel, expected_tokens, make_engine, run_all, window_group

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.engine.scheduler import Policy
from headrace.errors import CapacityError, UsageError
from headrace.ops.kv import KVGroupSpec

GREEDY = SamplingParams(temperature=0, max_tokens=12)
SEEDED = SamplingParams(seed=3, max_tokens=12)
BOTH = (FULL, window_group())
WINDOWS = (window_group(9), window_group(33))
GROUPS = [(FULL,), BOTH, WINDOWS]


def ids(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def check(model: ToyModel, engine: Engine, *requests: Request) -> None:
    run_all(engine)
    for request in requests:
        for generation in request.generations:
            want = expected_tokens(model, request, generation.index, engine.config.max_model_len)
            assert generation.token_ids == want


def text_of(request: Request) -> list[int]:
    return request.prompt_token_ids + request.generations[0].token_ids


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("params", [GREEDY, SEEDED])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 40, 64])
def test_row_2_the_same_prompt_twice(
    groups: tuple[KVGroupSpec, ...], params: SamplingParams, length: int
) -> None:
    model = ToyModel(groups)
    engine = make_engine(model, prefix_caching=True)
    cold = engine.add(ids(1, length), params)
    check(model, engine, cold)
    hit = engine.add(ids(1, length), params)
    check(model, engine, cold, hit)
    if groups == (FULL,):
        assert hit.num_cached_tokens == length - 1
    else:  # a window is kept at the last whole block of the prompt, and at the end
        assert hit.num_cached_tokens >= min(length // 4 * 4, length - 1)
    assert hit.generations[0].token_ids == cold.generations[0].token_ids


@pytest.mark.parametrize("groups", GROUPS)
def test_row_1_eight_copies_of_one_prompt_in_one_batch(groups: tuple[KVGroupSpec, ...]) -> None:
    model = ToyModel(groups)
    engine = make_engine(model, prefix_caching=True, max_num_seqs=8)
    copies = [engine.add(ids(1, 60), GREEDY) for _ in range(8)]
    check(model, engine, *copies)
    assert len({tuple(c.generations[0].token_ids) for c in copies}) == 1
    assert sum(c.num_cached_tokens > 0 for c in copies) >= 6


def test_what_was_found_and_lost_while_there_was_no_room_does_not_count() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True, max_model_len=64, num_blocks=[16])
    check(model, engine, engine.add(ids(1, 8), GREEDY.replace(max_tokens=1)))
    growing = engine.add(ids(2, 4), GREEDY.replace(max_tokens=60))
    for _ in range(24):
        engine.step()
    waiting = engine.add(ids(1, 8) + ids(3, 40), GREEDY.replace(max_tokens=1))
    engine.step()
    assert (
        len(engine.scheduler.waiting) == 1
    )  # 8 of its 48 positions are cached, the rest has no room
    check(model, engine, growing, waiting)
    assert waiting.num_computed_tokens == 48
    assert waiting.num_cached_tokens == 0


def test_row_5_equal_prompts_share_in_the_very_step_that_computes_them() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    prompt = ids(1, 10)  # 2.5 blocks
    pair = [engine.add(prompt, GREEDY), engine.add(prompt, GREEDY)]
    engine.step()
    assert model.batches == [(10, 2)]  # the second one computes only what is not a whole block
    tables = [r.generations[0].sequence.blocks for r in pair]
    assert tables[0] is not None
    assert tables[1] is not None
    assert tables[0].held(0)[:2] == tables[1].held(0)[:2]
    check(model, engine, *pair)


def test_a_block_that_is_still_unwritten_is_shared_whole_or_not_at_all() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    first = engine.add(ids(1, 16), GREEDY)
    other = engine.add([*ids(1, 10), *ids(2, 6)], GREEDY)  # leaves inside the third block
    engine.step()
    assert other.num_cached_tokens == 8
    assert model.num_copied == 0
    check(model, engine, first, other)
    later = engine.add([*ids(1, 10), *ids(3, 6)], GREEDY)
    check(model, engine, later)
    assert later.num_cached_tokens == 10  # written by now: the block is copied and reused in part


@pytest.mark.parametrize("groups", GROUPS)
def test_row_20_a_cancelled_request_leaves_what_it_computed(
    groups: tuple[KVGroupSpec, ...],
) -> None:
    model = ToyModel(groups)
    engine = make_engine(model, prefix_caching=True)
    cut = engine.add(ids(1, 30), GREEDY)
    for _ in range(5):
        engine.step()
    engine.abort(cut)
    turn = [*cut.prompt_token_ids, *ids(2, 7)]
    following = engine.add(turn, GREEDY)
    check(model, engine, following)
    assert following.num_cached_tokens >= 30 - 4
    whole = engine.add([*text_of(cut), 1], GREEDY)
    check(model, engine, whole)
    assert whole.num_cached_tokens == len(text_of(cut)) - 1


def test_a_prefix_is_found_while_its_owner_still_runs() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    owner = engine.add(ids(1, 48), GREEDY.replace(max_tokens=40))
    engine.step()  # 32 of the 48
    follower = engine.add([*ids(1, 48), 5, 6], GREEDY)
    engine.step()
    assert follower.num_cached_tokens == 48
    check(model, engine, owner, follower)


def test_salts_share_nothing() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    for salt, cached in (("a", 0), ("b", 0), ("a", 19), ("", 0), ("b", 19)):
        request = engine.add(ids(1, 20), GREEDY, cache_salt=salt)
        check(model, engine, request)
        assert request.num_cached_tokens == cached


def test_row_3_prompt_logprobs_are_complete_and_what_they_computed_serves_others() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, prefix_caching=True)
    scored = GREEDY.replace(prompt_logprobs=2)
    runs = []
    for _ in range(2):
        request = engine.add(ids(1, 33), scored)
        check(model, engine, request)
        runs.append(request)
    assert runs[0].prompt_logprobs == runs[1].prompt_logprobs
    assert runs[1].prompt_logprobs is not None
    assert len(runs[1].prompt_logprobs) == 33
    assert runs[1].prompt_logprobs[0] is None
    assert "logits of every prompt position" in (runs[1].cache_note or "")
    plain = engine.add(ids(1, 33), GREEDY)
    check(model, engine, plain)
    assert plain.num_cached_tokens == 32


def test_a_vector_neither_takes_nor_leaves() -> None:
    engine = make_engine(ToyModel(), prefix_caching=True)
    for _ in range(2):
        request = engine.add(ids(1, 20), PoolingParams())
        run_all(engine)
        assert request.num_cached_tokens == 0
    assert engine.cache.tree is not None
    assert engine.cache.tree.num_nodes == 0


@pytest.mark.parametrize("groups", GROUPS)
def test_preempted_sequences_come_back_through_the_tree(groups: tuple[KVGroupSpec, ...]) -> None:
    model = ToyModel(groups)
    engine = make_engine(model, prefix_caching=True, num_blocks=[24] * len(groups), budget=64)
    requests = [engine.add(ids(i, 12), GREEDY.replace(max_tokens=60)) for i in range(4)]
    check(model, engine, *requests)
    assert sum(r.num_preemptions for r in requests) > 0


def test_a_pool_full_of_cached_blocks_serves_at_full_chunks() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True, num_blocks=[30], budget=32)
    for i in range(6):
        check(model, engine, engine.add(ids(i, 60), GREEDY))
    assert engine.manager.free_counts[0] < 15
    model.batches.clear()
    check(model, engine, engine.add(ids(9, 60), GREEDY))
    assert model.batches[:2] == [(32,), (28,)]


def test_the_longest_cached_prefix_first_but_nobody_starves() -> None:
    engine = make_engine(
        ToyModel(), prefix_caching=True, max_num_seqs=1, schedule_policy=Policy.LPM
    )
    engine.add(ids(1, 40), GREEDY)
    run_all(engine)
    cold = engine.add(ids(2, 20), GREEDY)
    warm = [engine.add([*ids(1, 40), i], GREEDY) for i in range(20)]
    order: list[Request] = []
    while engine.has_work:
        engine.step()
        order += [r for r in (cold, *warm) if r.finished and r not in order]
    assert order[0] is warm[0]
    assert order.index(cold) == 16


def test_pins_stay_and_give_way_only_where_nobody_could_go_on() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True, num_blocks=[24], max_model_len=80)
    check(model, engine, engine.add(ids(1, 40), GREEDY))
    pin = engine.cache.pin(ids(1, 40))
    assert len(pin.tokens) == 40
    with pytest.raises(UsageError, match="Nothing of this prefix"):
        engine.cache.pin(ids(5, 12))
    for i in range(2, 6):
        check(model, engine, engine.add(ids(i, 40), GREEDY))
    again = engine.add(ids(1, 40), GREEDY)
    check(model, engine, again)
    assert again.num_cached_tokens == 39
    long = engine.add(ids(7, 60), GREEDY.replace(max_tokens=20))  # 20 of the 24 blocks
    check(model, engine, long)
    assert engine.cache.reuse.pins is not None
    assert engine.cache.reuse.pins.num_broken == 1
    assert not engine.cache.release(pin.pin_id)
    check(model, engine, engine.add(ids(8, 60), GREEDY))
    with pytest.raises(CapacityError, match="may hold 50% of it"):
        engine.cache.pin(ids(8, 60))


def test_a_failed_step_forgets_what_it_promised_but_not_what_is_pinned() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    check(model, engine, engine.add(ids(1, 20), GREEDY))
    engine.cache.pin(ids(1, 20))
    engine.add(ids(2, 20), GREEDY)
    model.fail_next = RuntimeError("no")
    run_all(engine)
    lost, kept = engine.add(ids(2, 20), GREEDY), engine.add(ids(1, 20), GREEDY)
    check(model, engine, lost, kept)
    assert (lost.num_cached_tokens, kept.num_cached_tokens) == (0, 19)


def test_where_a_window_makes_a_hit_shorter_the_account_says_so_and_the_branch_is_kept() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, prefix_caching=True)
    shared = ids(1, 40)
    hits = []
    for i in range(3):
        request = engine.add([*shared, *ids(10 + i, 30)], GREEDY)
        check(model, engine, request)
        hits.append((request.num_cached_tokens, request.cache_note))
    assert hits[0] == (0, None)
    assert hits[1][0] < 40
    assert "window" in (hits[1][1] or "")
    assert hits[2] == (40, None)


def test_the_last_column_of_the_pool_can_be_a_partly_matched_one() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True, num_blocks=[3], max_model_len=12)
    check(model, engine, engine.add(ids(1, 10), GREEDY.replace(max_tokens=1)))
    again = engine.add([*ids(1, 9), 5], GREEDY.replace(max_tokens=2))
    check(model, engine, again)
    whole = engine.add(ids(1, 10), GREEDY.replace(max_tokens=2))
    check(model, engine, whole)
