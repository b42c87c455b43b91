"""The native rejection rule against its definition in plain Python, bit by bit, and the drafter's
side with it: the stages, streams 1 to 3, masks, logprobs, rows that cannot be drawn from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sampler_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sampler import (
    HARD_CHAINS,
    SEED,
    cases,
    check_logprobs,
    check_trace,
    hard_rows,
    mask_words,
)
from toy_rounds import listed

from headrace.engine.params import SamplingParams
from headrace.engine.sampler import RowStatus, SampledToken, draw, make_state
from headrace.engine.speculation.drafter import Distribution
from headrace.engine.speculation.rejection import drafted, draw_drafts
from headrace.native import _core


def state_of(params, prompt, output, seed, index):
    state = make_state(params, prompt, seed=seed, sample_index=index)
    for token in output:
        state.accept(token)
    return state


def same_bits(a: dict[int, float], b: dict[int, float]) -> bool:
    return list(a) == list(b) and [oracle.bits(x) for x in a.values()] == [
        oracle.bits(x) for x in b.values()
    ]


def check_rule(row, params, prompt, output, seed, index, position, mask, draft_row, point) -> None:
    """Drafter and rule on one position, next to the oracle's."""
    num_ids = len(row)
    logits = np.array([row, draft_row], np.float32)
    state = state_of(params, prompt, output, seed, index)
    words = None if mask is None else mask_words(mask, num_ids)
    args = (params, prompt, output, params.stop_token_ids, seed, index, position, mask)
    want = oracle.draw(logits[1], num_ids, *args, stream=1)
    drawn = draw_drafts(logits[1:], [state], [position], num_ids, None, [words])[0]
    assert (drawn is None) == (want.status != "OK")
    if drawn is None:
        return
    draft, p = drawn
    assert draft == want.token
    assert want.final is not None
    expected = oracle.probabilities(want.final)
    assert same_bits(listed(p), expected)
    if point:
        expected = {draft: 1.0}
    tested = drafted(draft, None if point else p)
    got = draw(logits[:1], [state], [position], num_ids, None, [words], [tested])[0]
    got = SampledToken(got, RowStatus.OK) if isinstance(got, int) else got
    target = oracle.draw(logits[0], num_ids, *args)
    assert got.status.name == target.status
    if target.final is None:
        assert got.token == -1
        return
    q = oracle.probabilities(target.final)
    target.token = oracle.reject(q, expected, draft, seed, position, index)
    assert got.token == target.token
    check_logprobs(got, target, params)
    if params.trace:
        check_trace(got, target, params)


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_equals_the_definition_bit_by_bit(case, data) -> None:
    row, _, params, prompt, output, seed, index, position, mask = case
    if data.draw(st.booleans(), "near"):
        noise = st.floats(-1, 1, width=32)
        draft_row = [x + data.draw(noise) for x in row]
    else:
        draft_row = data.draw(st.permutations(row))
    point = data.draw(st.booleans(), "point")
    check_rule(row, params, prompt, output, seed, index, position, mask, draft_row, point)


@pytest.mark.parametrize("isa", _core.available_isas())
def test_large_rows_equal_the_definition(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every instruction set: rows past one block, ties, edited ids between others."""
    monkeypatch.setenv("HEADRACE_ISA", isa)
    chains = [
        {},
        {"temperature": 3.0, "top_p": 0.99},
        {"top_k": 300, "repetition_penalty": 1.3},
        {"logit_bias": {3: 5.0, 500: -1.0}, "presence_penalty": 0.5, "temperature": 0.7},
        {"typical_p": 0.9, "min_p": 1e-4},
        {"temperature": 0.0, "presence_penalty": 1.0},
    ]
    rng = np.random.default_rng(5)
    for number, chain in enumerate(chains):
        row = (rng.standard_normal(613 + number) * 2).astype(np.float32)
        row[rng.integers(0, 600, 50)] = row[0]
        draft_row = row + (rng.standard_normal(len(row)) * (number % 3)).astype(np.float32)
        params = SamplingParams(logprobs=3, logprobs_mode="processed", **chain)
        mask = set(range(0, 600, 2)) if number % 2 else None
        for position, point in enumerate([True, False]):
            case = (params, [3, 9, 500], [9, 5], SEED, 1, position, mask)
            check_rule(row.tolist(), *case, draft_row.tolist(), point)


def test_hard_rows_equal_the_definition() -> None:
    for number, row in enumerate(hard_rows(300).values()):
        for chain in HARD_CHAINS[number % 3 :: 3]:
            case = (SamplingParams(logprobs=1, **chain), [3], [9], SEED, 0, number, None)
            check_rule(row.tolist(), *case, row[::-1].tolist(), number % 2 == 0)


# ---- what is not finite, not there, not possible ------------------------------------------------


def row_of(*logits: float) -> np.ndarray:
    return np.array([logits], np.float32)


def decide(
    logits: np.ndarray, params: SamplingParams, token: int, drawn_from: Distribution | None = None
) -> SampledToken:
    state = make_state(params, [], seed=SEED if params.seed is None else None)
    [drawn] = draw(logits, [state], [0], logits.shape[1], drafts=[drafted(token, drawn_from)])
    return SampledToken(drawn, RowStatus.OK) if isinstance(drawn, int) else drawn


def test_rows_that_cannot_be_drawn_from_have_their_status() -> None:
    """Row 37: no crash, no token, and the neighbour is as ever; at temperature 0 too."""
    for params in (SamplingParams(), SamplingParams(temperature=0.0)):
        for bad in (math.nan, math.inf):
            assert decide(row_of(0, bad, 1), params, 1) == SampledToken(-1, RowStatus.NON_FINITE)
        nothing = row_of(*[-math.inf] * 3)
        assert decide(nothing, params, 1).status is RowStatus.NON_FINITE
        banned = params.replace(allowed_token_ids=[1], seed=3)
        assert decide(row_of(0, -math.inf, 1), banned, 1).status is RowStatus.NO_CANDIDATES
        states = [make_state(params, [], seed=SEED)] * 2
        rows = np.concatenate([row_of(0, math.nan, 1), row_of(0, 1, 1)])
        both = draw(rows, states, [0, 0], 3, drafts=[drafted(1, None), drafted(2, None)])
        assert both[1] == decide(rows[1:], params, 2).token
        drafts = draw_drafts(rows, states, [0, 0], 3)
        assert drafts[0] is None
        assert drafts[1] is not None


def test_greedy_is_a_point_mass_on_both_sides() -> None:
    greedy = SamplingParams(temperature=0.0)
    state = make_state(greedy, [], seed=1)
    [drawn] = draw_drafts(row_of(0, 2, 1), [state], [0], 3)
    assert drawn is not None
    token, p = drawn
    assert (token, p.ids.tolist(), p.probs.tolist()) == (1, [1], [1.0])
    for seed in range(50):
        params = greedy.replace(seed=seed)
        assert decide(row_of(0, 2, 1), params, 1, p).token == 1  # the same: always kept
        assert decide(row_of(0, 1, 2), params, 1, p).token == 2  # another: never
        assert decide(row_of(0, 1, 2), params, 0).token == 2


def test_what_the_target_cannot_draw_is_never_kept() -> None:
    """Banned, cut by top_k, outside the vocabulary, listed by the draft or not."""
    certain = Distribution(np.array([0], np.int32), np.array([1.0]))
    for seed in range(200):
        params = SamplingParams(seed=seed, banned_token_ids=[0])
        assert decide(row_of(9, 1, 1), params, 0, certain).token in (1, 2)
        assert decide(row_of(9, 1, 1), params, 0).token in (1, 2)
        assert decide(row_of(0, 1, 9), SamplingParams(seed=seed, top_k=1), 0).token == 2
        assert decide(row_of(0, 1, 2), SamplingParams(seed=seed), 2_000_000_000).token < 3
        wide = Distribution(np.array([1, 7], np.int32), np.array([0.5, 0.5]))
        assert decide(row_of(0, 1, 2), SamplingParams(seed=seed), 7, wide).token in (0, 2)


def test_a_draft_does_not_change_its_neighbours() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((6, 50)).astype(np.float32)
    states = [make_state(SamplingParams(logprobs=2), [], seed=s) for s in range(6)]
    plain = draw(rows, states, range(6), 50)
    some = [drafted(3, None) if i % 2 else None for i in range(6)]
    mixed = draw(rows, states, range(6), 50, drafts=some)
    assert [mixed[i] for i in (0, 2, 4)] == [plain[i] for i in (0, 2, 4)]
    assert draw(rows, states, range(6), 50, drafts=[None] * 6) == plain


ids = lambda *values: np.array(values, np.int32)  # noqa: E731
probs = lambda *values: np.array(values, np.float64)  # noqa: E731


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        ((-1, None), "token is negative"),
        ((0, (ids(0, 1), probs(1.0))), "2 ids and 1 probabilities"),
        ((0, (ids(), probs())), "0 ids and 0 probabilities"),
        ((0, (ids(1, 0), probs(0.5, 0.5))), "not ascending"),
        ((0, (ids(0, 0), probs(0.5, 0.5))), "not ascending"),
        ((0, (ids(-1, 0), probs(0.5, 0.5))), "not ascending"),
        ((0, (ids(0, 1), probs(math.nan, 0.5))), "not in 0 … 1"),
        ((0, (ids(0, 1), probs(0.5, math.inf))), "not in 0 … 1"),
        ((0, (ids(0, 1), probs(1.5, -0.5))), "not in 0 … 1"),
        ((2, (ids(0, 1), probs(0.5, 0.5))), "no probability"),
        ((0, (ids(0, 1), probs(0.0, 1.0))), "no probability"),
    ],
)
def test_drafts_that_cannot_be_are_refused(draft: Any, why: str) -> None:
    state = make_state(SamplingParams(), [], seed=1)
    with pytest.raises(ValueError, match=why):
        draw(row_of(0, 1, 2), [state], [0], 3, drafts=[draft])
    with pytest.raises(ValueError, match="2 rows, drafts 1"):
        draw(np.zeros((2, 3), np.float32), [state] * 2, [0, 0], 3, drafts=[None])


def test_streams_are_apart() -> None:
    """Drafts, text, acceptance and residual never use one number twice."""
    flat = np.zeros((1, 64), np.float32)
    state = make_state(SamplingParams(), [], seed=SEED)
    text = [draw(flat, [state], [i], 64)[0] for i in range(40)]
    drafts = [d[0] for i in range(40) if (d := draw_drafts(flat, [state], [i], 64)[0])]
    assert sum(a == b for a, b in zip(text, drafts, strict=True)) < 8
    numbers = [oracle.uniform(SEED, i, 0, stream) for i in range(40) for stream in (2, 3)]
    assert len(set(numbers)) == 80
    assert 0 < min(numbers) < 0.1 < 0.9 < max(numbers) < 1
