"""Which drafts a step has room for: exact token counts and blocks, no engine and no model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_scheduler import Bench

from headrace.engine.request import Sequence, Status
from headrace.engine.sizing import fair_cap


def decoding(bench: Bench, count: int, length: int = 3) -> list[Sequence]:
    """So many sequences that have drawn their first token; no two begin alike."""
    sequences = [bench.add(length, first=40 * bench.num) for _ in range(count)]
    while any(s.num_wanted != 1 or s.num_tokens == length for s in sequences):
        bench.plan()
    return sequences


def step(bench: Bench, drafts: dict[Sequence, int]) -> list[tuple[int, int]]:
    """One step with so many drafts of each, none of which is accepted."""
    for sequence, number in drafts.items():
        sequence.drafts = [7] * number
    plan = bench.scheduler.schedule(sum(drafts.values()))
    counts = []
    for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
        number = len(sequence.drafts)
        assert number <= drafts.get(sequence, 0)
        assert sequence.blocks is not None
        assert sequence.blocks.num_writable >= sequence.num_computed_tokens + count
        sequence.num_computed_tokens += count - number
        if sequence.num_wanted == 0:
            sequence.tokens.append(0)
        counts.append((sequence.order[0], count))
    assert plan.num_draft_tokens == sum(len(s.drafts) for s in plan.sequences)
    assert plan.num_verify_tokens == sum(1 + len(s.drafts) for s in plan.sequences if s.drafts)
    for sequence in drafts:
        sequence.drafts = []
    return counts


def test_drafts_take_what_is_left_and_share_it_fairly() -> None:
    bench = Bench(budget=16)
    a, b, c = decoding(bench, 3)
    assert step(bench, {a: 5, b: 1, c: 7}) == [(0, 6), (1, 2), (2, 8)]
    assert step(bench, {a: 5, b: 1, c: 30}) == [(0, 6), (1, 2), (2, 8)]
    assert step(bench, {a: 20, c: 30}) == [(0, 7), (1, 1), (2, 7)]
    assert step(bench, {b: 3}) == [(0, 1), (1, 4), (2, 1)]


def test_a_prompt_that_comes_gets_half_of_what_is_left() -> None:
    bench = Bench(budget=12)
    (a,) = decoding(bench, 1)
    bench.add(30)
    assert step(bench, {a: 30}) == [(0, 6), (1, 6)]
    assert step(bench, {a: 30}) == [(0, 6), (1, 6)]
    assert step(bench, {a: 2}) == [(0, 3), (1, 9)]
    assert step(bench, {}) == [(0, 1), (1, 9)]
    assert step(bench, {a: 20}) == [(0, 11), (1, 1)]


def test_what_a_short_or_limited_prompt_leaves_is_for_drafts() -> None:
    bench = Bench(budget=16, prefill=3)
    (a,) = decoding(bench, 1)
    bench.add(5)
    assert step(bench, {a: 30}) == [(0, 13), (1, 3)]  # nobody knew how little would come
    assert step(bench, {a: 30}) == [(0, 14), (1, 2)]


def test_a_single_token_left_is_the_prompts() -> None:
    bench = Bench(budget=2, seqs=2)
    (a,) = decoding(bench, 1)
    bench.add(4)
    assert step(bench, {a: 3}) == [(0, 1), (1, 1)]


def test_drafts_are_no_prefill() -> None:
    """max_prefill_tokens bounds prompts only."""
    bench = Bench(budget=16, prefill=4)
    a, _ = decoding(bench, 2)
    bench.add(9)
    assert step(bench, {a: 6}) == [(0, 7), (1, 1), (2, 4)]


def test_rows_to_draw_from_are_bounded() -> None:
    bench = Bench(budget=16)
    bench.scheduler.budget = replace(bench.scheduler.budget, max_logit_rows=5)
    a, b = decoding(bench, 2)
    assert step(bench, {a: 9, b: 2}) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("window", [None, 6])
def test_drafts_take_free_blocks_only(window: int | None) -> None:
    bench = Bench(num_blocks=5, window=window)
    a, b = decoding(bench, 2, 7)  # 8 tokens, 7 positions, two blocks; one more is free
    assert step(bench, {a: 5, b: 5}) == [(0, 5), (1, 1)]
    assert b.status is Status.RUNNING
    assert bench.manager.free_counts[0] == 0


def test_nobody_speculates_where_blocks_are_so_short_that_one_was_preempted() -> None:
    bench = Bench(num_blocks=4)
    a, b = decoding(bench, 2, 7)
    step(bench, {})
    assert step(bench, {a: 2, b: 2}) == [(0, 1)]
    assert b.status is Status.WAITING


@given(st.lists(st.integers(0, 70), max_size=20), st.integers(0, 500))
def test_a_fair_cap_is_the_highest(wants: list[int], total: int) -> None:
    cap = fair_cap(wants, total)
    assert sum(min(want, cap) for want in wants) <= total
    assert cap == max(wants, default=0) or sum(min(w, cap + 1) for w in wants) > total


def test_cached_prefixes_make_way_for_drafts() -> None:
    """In the long run every block is cached; drafts must not wait for free ones."""
    bench = Bench(num_blocks=6, caching=True)
    (old,) = decoding(bench, 1, 15)
    bench.end(old)
    (a,) = decoding(bench, 1, 7)
    assert sum(bench.manager.free_counts) == 0
    assert step(bench, {a: 6}) == [(1, 7)]
