"""The native sampler against its definition in plain Python, bit by bit, and against faults met
elsewhere (rows 24-31, 33, 34, 36)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sampler_oracle as oracle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.engine.params import DEFAULT_STAGES, ORDERED_STAGES, SamplingParams
from headrace.engine.sampler import RowStatus, SampledToken, make_state, sample, token_logprobs
from headrace.native import _core

SEED = 0x1234_5678_9ABC_DEF0


def row_of(*logits: float) -> np.ndarray:
    return np.array([logits], dtype=np.float32)


def draw_one(
    logits: np.ndarray, params: SamplingParams, position: int = 5, seed: int = SEED
) -> SampledToken:
    state = make_state(params, [], seed=seed)
    return sample(logits, [state], [position], logits.shape[1])[0]


def draw_many(logits: np.ndarray, params: SamplingParams, count: int, num_ids: int) -> np.ndarray:
    """Tokens drawn from one row at positions 0 … count−1."""
    state = make_state(params, [], seed=SEED)
    rows = np.repeat(logits, 500, axis=0)
    tokens = []
    for first in range(0, count, 500):
        positions = np.arange(first, first + 500)
        tokens += [t.token for t in sample(rows, [state] * 500, positions, num_ids)]
    return np.array(tokens)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


# ---- arithmetic ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # known answers of Random123 1.09, kat_vectors: philox4x32 10
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0_A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: int, words: list[int]) -> None:
    assert _core.philox(counter, key) == words
    assert oracle.philox(counter, key) == words


@given(st.floats(-720, 0) | st.sampled_from([0.0, -708.0, -708.0000001, -745.0, -math.inf]))
def test_exp_is_the_definition_and_within_one_unit(x: float) -> None:
    value = _core.exp_nonpositive(x)
    assert oracle.bits(value) == oracle.bits(oracle.exp(x))
    if x >= -708:
        assert abs(value - math.exp(x)) <= math.ulp(math.exp(x))


@given(st.floats(1e-300, 1e300) | st.floats(0.5, 2.0))
def test_log_is_the_definition_and_within_two_units(x: float) -> None:
    value = _core.natural_log(x)
    assert oracle.bits(value) == oracle.bits(oracle.ln(x))
    assert abs(value - math.log(x)) <= 2 * math.ulp(math.log(x))


def test_noise_is_gumbel_and_differs_by_every_counter_word() -> None:
    """Kolmogorov-Smirnov against exp(−exp(−g)) on 20,000 values; the noise is read off the draw."""
    words = [w for i in range(5000) for w in _core.philox([i, 7, 0, 0], SEED)]
    u = np.sort((np.array(words) + 0.5) / 2**32)
    n = len(u)
    distance = max(np.max(np.arange(1, n + 1) / n - u), np.max(u - np.arange(n) / n))
    assert distance < 1.95 / math.sqrt(n)  # p = 0.001
    g = np.array([_core.gumbel(w) for w in words])
    assert abs(g.mean() - 0.5772156649) < 4 * math.pi / math.sqrt(6 * n)
    assert _core.gumbel(2**32 - 1) < 22.9
    flat = np.zeros((1, 64), dtype=np.float32)

    def text(seed: int, sample_index: int, first: int) -> list[int]:
        state = make_state(SamplingParams(), [], seed=seed, sample_index=sample_index)
        return [sample(flat, [state], [first + i], 64)[0].token for i in range(20)]

    texts = [text(SEED, 0, 0), text(SEED + 1, 0, 0), text(SEED, 1, 0), text(SEED, 0, 1)]
    texts.append(text(SEED + 2**32, 0, 0))
    assert len({tuple(t) for t in texts}) == 5
    assert texts[0] == text(SEED, 0, 0)


# ---- the whole definition, bit by bit -----------------------------------------------------------

logit = st.one_of(
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, 1.0, 1.0, -1.0, 20.0, -math.inf]),  # ties and impossible ids
)
ids = st.integers(0, 39)
fraction = st.sampled_from([0.01, 0.3, 0.5, 0.8, 0.9, 0.95, 0.999, 1.0]) | st.floats(0.001, 1)


@st.composite
def cases(draw):
    num_ids = draw(st.integers(1, 40))
    row = draw(st.lists(logit, min_size=num_ids, max_size=num_ids))
    spoil = draw(st.sampled_from([None] * 20 + [math.nan, math.inf]))
    if spoil is not None:
        row[draw(st.integers(0, num_ids - 1))] = spoil
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1.0, 0.7, 1.3, 5.0, 1e-5])),
        top_k=draw(st.sampled_from([0, -1, 1, 2, 5, 39, 10**12])),
        top_p=draw(st.sampled_from([0.0, 1.0, 1.0]) | fraction),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])),
        typical_p=draw(st.sampled_from([1.0, 1.0]) | fraction),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 2.0, -0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3])),
        logit_bias=draw(st.none() | st.dictionaries(ids, st.floats(-50, 50), max_size=3)),
        allowed_token_ids=draw(st.none() | st.none() | st.lists(ids, min_size=1, max_size=9)),
        banned_token_ids=draw(st.lists(ids, max_size=4)),
        min_tokens=draw(st.sampled_from([0, 0, 2])),
        stop_token_ids=draw(st.lists(ids, max_size=2)),
        logprobs=draw(st.sampled_from([0, 3, 100])),
        logprobs_mode=draw(st.sampled_from(["raw", "processed"])),
        stages=(*DEFAULT_STAGES[:2], *draw(st.permutations(ORDERED_STAGES))),
        trace=draw(st.sampled_from([0, 4])),
    )
    prompt = draw(st.lists(ids, max_size=5))
    output = draw(st.lists(ids, max_size=5))
    padding = draw(st.integers(0, 20))
    seed, index = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 3))
    position = draw(st.integers(0, 2**32 - 1))
    mask = draw(st.none() | st.none() | st.sets(ids))
    return row, padding, params, prompt, output, seed, index, position, mask


def mask_words(allowed: set[int], num_ids: int) -> np.ndarray:
    """As the sampler takes it; the bits behind the last id are set, and must never matter."""
    bits = np.array([i in allowed or i >= num_ids for i in range(-(-num_ids // 32) * 32)])
    return np.packbits(bits, bitorder="little").view("<u4")


def check_against_oracle(
    row, padding, params, prompt, output, seed, index, position, mask=None
) -> None:
    num_ids = len(row)
    state = make_state(params, prompt, seed=seed, sample_index=index)
    for token in output:
        state.accept(token)
    # Padded rows hold what must never matter.
    padded = np.array([row + [1e30, math.nan, math.inf][:padding]], dtype=np.float32)
    masks = None if mask is None else [mask_words(mask, num_ids)]
    got = sample(padded, [state], [position], num_ids, masks=masks)[0]
    stop_ids = params.stop_token_ids
    want = oracle.draw(
        padded[0], num_ids, params, prompt, output, stop_ids, seed, index, position, mask
    )
    assert got.status.name == want.status
    assert got.token == want.token
    if got.status is not RowStatus.OK:
        assert got.logprobs is None
        return
    check_logprobs(got, want, params)
    if params.trace:
        check_trace(got, want, params)


def check_logprobs(got: SampledToken, want: oracle.Draw, params: SamplingParams) -> None:
    d = want.model if params.logprobs_mode == "raw" else want.final
    logprob, rank, top = oracle.logprobs(d, want.token, params.logprobs)
    assert got.logprobs is not None
    assert oracle.bits(got.logprobs.logprob) == oracle.bits(logprob)
    assert got.logprobs.rank == rank
    assert [i for i, _ in got.logprobs.top] == [i for i, _ in top]
    assert [oracle.bits(x) for _, x in got.logprobs.top] == [oracle.bits(x) for _, x in top]


def check_trace(got: SampledToken, want: oracle.Draw, params: SamplingParams) -> None:
    assert got.trace is not None
    assert [s.name for s in got.trace.stages] == list(params.stages)
    previous = got.trace.stages[0].before
    for stage, d in zip([None, *got.trace.stages], [want.model, *want.after], strict=True):
        if stage is not None:
            assert stage.before is previous or stage.before == previous
            assert stage.active or stage.after == stage.before
            previous = stage.after
        z_max, total, entropy = d.weigh()
        order = d.order()
        assert previous.num_candidates == len(order)
        assert oracle.bits(previous.log_normaliser) == oracle.bits(z_max + oracle.ln(total))
        assert list(previous.logits) == [d.z[i] for i in order[: params.trace]]
        assert oracle.bits(previous.entropy) == oracle.bits(entropy)
        top = [(i, d.weights[i] / total) for i in order[: params.trace]]
        assert list(previous.top) == top
        named = sum(p for _, p in top)
        assert previous.tail_mass == pytest.approx(1 - named, abs=1e-12)
        assert previous.tail_mass >= 0
    assert got.token in want.final.z
    base = want.after[1]  # behind bias and penalties
    for temperature, entropy, log_normaliser in got.trace.grid:
        divided = {i: z / temperature for i, z in base.z.items()}
        z_max, total, expected = oracle.Distribution(divided, base.num_ids).weigh()
        assert oracle.bits(entropy) == oracle.bits(expected)
        assert oracle.bits(log_normaliser) == oracle.bits(z_max + oracle.ln(total))


@settings(max_examples=600, deadline=None)
@given(cases())
@example(
    (
        [math.nan] * 3, 2, SamplingParams(logprobs=2), [], [], 1, 0, 0, None,
    )
)  # fmt: skip
def test_equals_the_definition_bit_by_bit(case) -> None:
    check_against_oracle(*case)


@pytest.mark.parametrize("isa", _core.available_isas())
@pytest.mark.parametrize(("turn", "scale"), [(0, 0.3), (1, 3.0), (2, 12.0)])
def test_large_rows_equal_the_definition(
    isa: str, turn: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vocabularies that reach the vector loops and the skipping of candidates, on every level. Over
    the three scales every chain meets every kind of mask."""
    monkeypatch.setenv("HEADRACE_ISA", isa)
    rng = np.random.default_rng(7)
    chains = [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"temperature": 0.0, "presence_penalty": 1.0},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
        {"min_p": 0.001},
        {"typical_p": 0.7},
        {"top_k": 300},
    ]
    for number, chain in enumerate(chains):
        num_ids = 1500 + 37 * number
        row = (rng.standard_normal(num_ids) * scale).astype(np.float32)
        row[rng.integers(0, num_ids, 50)] = row[0]  # ties
        row[rng.integers(0, num_ids, 50)] = -np.inf
        params = SamplingParams(logprobs=5, logprobs_mode="processed", trace=3, **chain)
        position = (number + turn) % 3
        mask = [None, {7}, set(rng.integers(0, num_ids, 900).tolist())][position]
        check_against_oracle(row.tolist(), 3, params, [1, 2], [3, 3], SEED, 0, position, mask)


def hard_rows(num_ids: int) -> dict[str, np.ndarray]:
    """Rows on which a shortcut could slip: ties, zeros of both signs, denormals, extremes."""
    rng = np.random.default_rng(11)
    normal = rng.standard_normal(num_ids).astype(np.float32)
    zeros = np.full(num_ids, -0.0, np.float32)
    zeros[num_ids // 3] = 0.0
    sparse = np.where(rng.random(num_ids) < 0.97, -np.inf, normal * 9).astype(np.float32)
    outlier = normal.copy()
    outlier[[0, -1]] = 3e38, -3e38
    return {
        "equal": np.full(num_ids, 2.5, np.float32),
        "zeros": zeros,
        "whole numbers": np.round(normal * 4),
        "denormal": (normal * 1e-40).astype(np.float32),
        "huge": (normal * 1e30).astype(np.float32),
        "close": (1000 + normal * 1e-3).astype(np.float32),
        "one": np.where(np.arange(num_ids) == num_ids - 1, -5.0, -np.inf).astype(np.float32),
        "sparse": sparse,
        "outlier": outlier,
        "falling": -np.sort(-normal),
        "rising": np.sort(normal),
    }


HARD_CHAINS: list[dict] = [
    {"temperature": 1000.0},
    {"temperature": 1e-5, "top_p": 0.9},
    {"typical_p": 0.9, "top_p": 0.9, "min_p": 1.0},
    {"typical_p": 0.2, "temperature": 5.0},
    {"top_p": 0.999999, "temperature": 2.0},
    {"top_k": 700, "typical_p": 0.5},
    {"min_p": 1e-308},
    {"min_p": 0.1, "top_k": 3, "stages": (*DEFAULT_STAGES[:2], *reversed(ORDERED_STAGES))},
    {"repetition_penalty": 1.3, "logit_bias": {3: 5.0, 1000: -1.0}, "top_p": 0.8},
    {"repetition_penalty": 0.7, "presence_penalty": 0.5, "top_k": 40, "temperature": 0.8},
    {"logit_bias": {1: 2.0}, "min_p": 0.3, "banned_token_ids": [1, 2], "typical_p": 0.9},
]


@pytest.mark.parametrize("isa", _core.available_isas())
@pytest.mark.parametrize("number", range(len(HARD_CHAINS)))
def test_hard_rows_equal_the_definition(
    isa: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain per case on every hard row: lists long enough for the sort by digits, ids past the
    last whole block, edited ids between unedited ones."""
    monkeypatch.setenv("HEADRACE_ISA", isa)
    params = SamplingParams(
        logprobs=4,
        logprobs_mode=("raw", "processed")[number % 2],
        trace=number % 3,
        **HARD_CHAINS[number],
    )
    for row in hard_rows(1201 + number).values():
        case = (row.tolist(), 2, params, [3, 9, 1000], [9, 5], SEED, 1, number)
        check_against_oracle(*case)
        check_against_oracle(*case, mask=set(range(number, 1200, 1 + 6 * number)) | {1000, 1200})


def test_skipping_loses_no_winner() -> None:
    """The draw computes noise for few ids; over 400 draws it agrees with all noise computed."""
    rng = np.random.default_rng(3)
    row = (rng.standard_normal((1, 997)) * 2).astype(np.float32)
    z = row[0].astype(np.float64)
    state = make_state(SamplingParams(), [], seed=SEED)
    for position in range(400):
        noise = [oracle.gumbel(SEED, position, 0, i) for i in range(997)]
        assert sample(row, [state], [position], 997)[0].token == int(np.argmax(z + noise))


# ---- greedy (rows 24, 25) -----------------------------------------------------------------------


def test_greedy_is_argmax_whatever_else_is_set() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, 300)).astype(np.float32)
    rows[:, 200] = rows[:, 40] = rows.max(axis=1)  # ties go to the lowest id
    best = rows.argmax(axis=1).tolist()
    for extra in ({}, {"top_p": 0.5, "min_p": 0.3}, {"typical_p": 0.2}, {"top_k": 7}):
        for seed in range(1, 6):
            params = SamplingParams(temperature=0, seed=seed, **extra)
            drawn = sample(rows, [make_state(params, [])] * 20, range(20), 300)
            assert [t.token for t in drawn] == best
    for same in ({"top_k": 1}, {"top_p": 0}, {"top_p": 0, "typical_p": 0.1}, {"min_p": 1.0}):
        if "min_p" in same:
            rows[:, 40] += 1  # min_p keeps every tie, so there must be none
        drawn = sample(rows, [make_state(SamplingParams(**same), [])] * 20, range(20), 300)
        assert [t.token for t in drawn] == rows.argmax(axis=1).tolist()


# ---- distributions (rows 29, 31, 34, 36) --------------------------------------------------------


def test_off_values_of_top_k_are_off() -> None:
    """Rows 29, 31: 20,000 draws of 16 tokens; 37.7 is the 0.1 % point of χ² with 15 degrees."""
    logits = row_of(*np.linspace(0, 2, 16))
    p = np.exp(logits[0].astype(np.float64))
    p /= p.sum()
    drawn = {}
    for name, extra in {"absent": {}, "0": {"top_k": 0}, "-1": {"top_k": -1},
                        "V": {"top_k": 16}, "huge": {"top_k": 9_999_999}}.items():  # fmt: skip
        drawn[name] = draw_many(logits, SamplingParams(**extra), 20_000, 16)
        assert chi_square(np.bincount(drawn[name], minlength=16), p) < 37.7
        assert np.array_equal(drawn[name], drawn["absent"])


@pytest.mark.parametrize(
    ("chain", "kept"),
    [({"temperature": 0.5}, 16), ({"top_k": 4}, 4), ({"top_p": 0.6}, 6), ({"min_p": 0.5}, 6)],
)
def test_draws_follow_the_processed_distribution(chain: dict[str, float], kept: int) -> None:
    logits = row_of(*np.linspace(0, 2, 16))
    z = logits[0].astype(np.float64) / chain.get("temperature", 1.0)
    p = np.exp(z - z.max())
    p /= p.sum()
    if "top_p" in chain:
        assert p[17 - kept :].sum() < chain["top_p"] <= p[16 - kept :].sum()
    p[: 16 - kept] = 0
    p /= p.sum()
    counts = np.bincount(draw_many(logits, SamplingParams(**chain), 20_000, 16), minlength=16)
    assert np.all(counts[: 16 - kept] == 0)
    assert np.all(counts[16 - kept :] > 0)
    limit = {16: 37.7, 6: 20.5, 4: 16.3}[kept]  # the 0.1 % points
    assert chi_square(counts[16 - kept :], p[16 - kept :]) < limit


def test_padded_vocabulary_is_never_drawn() -> None:
    """Row 36: T = 5, 10,000 draws, padded rows of the head hold the largest logits."""
    logits = np.zeros((1, 40), dtype=np.float32)
    logits[0, 25:] = 50
    tokens = draw_many(logits, SamplingParams(temperature=5.0), 10_000, 25)
    assert tokens.max() < 25
    assert len(np.unique(tokens)) == 25
    state = make_state(SamplingParams(logprobs=100), [], seed=1)
    result = sample(logits, [state], [0], 25)[0]
    assert result.logprobs is not None
    assert {i for i, _ in result.logprobs.top} == set(range(25))
    assert sum(math.exp(x) for _, x in result.logprobs.top) == pytest.approx(1, abs=1e-12)


def test_stage_order_is_the_requests_and_is_seen() -> None:
    """Row 34: logits [3, 2, 1], top_p 0.8, T 0.5."""
    first = SamplingParams(temperature=0.5, top_p=0.8, trace=5)
    last = first.replace(
        stages=("bias", "penalties", "top_k", "typical", "top_p", "min_p", "temperature")
    )
    kept = {}
    for name, params in {"first": first, "last": last}.items():
        trace = draw_one(row_of(3, 2, 1), params).trace
        assert trace is not None
        assert [s.name for s in trace.stages] == list(params.stages)
        kept[name] = {i for i, _ in trace.stages[-1].after.top}
    assert kept == {"first": {0}, "last": {0, 1}}


def test_ties_at_the_top_k_border_keep_the_lowest_ids() -> None:
    trace = draw_one(row_of(0, 1, 1, 5, 1, 1), SamplingParams(top_k=3, trace=9)).trace
    assert trace is not None
    assert [i for i, _ in trace.stages[-1].after.top] == [3, 1, 2]


# ---- penalties (row 33) -------------------------------------------------------------------------


def after_penalties(params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """Probabilities of ids 0 … 3 after the penalties, of logits [2, −1, 0.5, 1]."""
    state = make_state(params.replace(trace=4), prompt, seed=1)
    for token in output:
        state.accept(token)
    trace = sample(row_of(2, -1, 0.5, 1), [state], [0], 4)[0].trace
    assert trace is not None
    return [p for _, p in sorted(trace.stages[1].after.top)]


def softmax(*z: float) -> list[float]:
    w = np.exp(np.array(z))
    return (w / w.sum()).tolist()


def test_presence_and_frequency_see_output_only() -> None:
    plain = softmax(2, -1, 0.5, 1)
    both = SamplingParams(presence_penalty=2, frequency_penalty=0.5)
    assert after_penalties(both, [0, 0, 0], []) == pytest.approx(plain, abs=1e-15)
    want = softmax(2, -1, 0.5 - 2 * 0.5 - 2, 1)
    assert after_penalties(both, [0, 0, 0], [2, 2]) == pytest.approx(want, abs=1e-15)


def test_repetition_sees_prompt_and_output_once() -> None:
    p = SamplingParams(repetition_penalty=1.3)
    want = softmax(2 / 1.3, -1 * 1.3, 0.5, 1 / 1.3)
    assert after_penalties(p, [0, 0, 1], [3, 3]) == pytest.approx(want, abs=1e-15)


def test_fork_copies_the_history_and_draws_on_its_own() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    parent = make_state(params, [1], seed=SEED)
    parent.accept(2)
    child = parent.fork(1)
    assert (child.seed, child.sample_index, child.num_output) == (SEED, 1, 1)
    child.accept(3)
    assert (parent.num_output, child.num_output) == (1, 2)
    flat = np.zeros((2, 50), dtype=np.float32)
    pairs = [sample(flat, [parent, child], [i, i], 50) for i in range(20)]
    assert [a.token for a, _ in pairs] != [b.token for _, b in pairs]


# ---- bias, lists, bad rows ----------------------------------------------------------------------


def test_bias_allowed_banned_and_held_back_stops() -> None:
    flat = np.zeros((1, 8), dtype=np.float32)

    def drawn(params: SamplingParams) -> set[int]:
        return set(draw_many(flat, params, 1000, 8).tolist())

    assert drawn(SamplingParams(allowed_token_ids=[1, 6, 6])) == {1, 6}
    assert drawn(SamplingParams(banned_token_ids=[0, 3])) == {1, 2, 4, 5, 6, 7}
    assert drawn(SamplingParams(allowed_token_ids=[1, 6], banned_token_ids=[1])) == {6}
    assert drawn(SamplingParams(logit_bias={4: 100.0})) == {4}
    held = make_state(SamplingParams(min_tokens=2, stop_token_ids=[3]), [], eos_ids=[0], seed=1)
    for out in range(3):
        drawn_now = {sample(flat, [held], [i], 8)[0].token for i in range(300)}
        assert ({0, 3} & drawn_now == set()) == (out < 2)
        held.accept(5)
    ignoring = SamplingParams(min_tokens=2, ignore_eos=True)
    state = make_state(ignoring, [], eos_ids=[0], seed=1)
    assert 0 in {sample(flat, [state], [i], 8)[0].token for i in range(300)}


def test_rows_that_cannot_be_sampled_say_so_and_harm_no_neighbour() -> None:
    n = 40
    rows = np.tile(np.linspace(-1, 1, n, dtype=np.float32), (6, 1))
    rows[1, 17] = math.nan
    rows[2, 33] = math.inf
    rows[3] = -math.inf
    rows[4, :39] = -math.inf  # one candidate is enough
    only = SamplingParams(allowed_token_ids=[3])
    for temperature in (0.0, 1.0):
        plain = make_state(SamplingParams(temperature=temperature), [], seed=9)
        states = [plain] * 5 + [make_state(only.replace(temperature=temperature), [], seed=9)]
        rows[5, 3] = -math.inf
        got = sample(rows, states, [4] * 6, n)
        assert [r.status.name for r in got] == [
            "OK", "NON_FINITE", "NON_FINITE", "NON_FINITE", "OK", "NO_CANDIDATES",
        ]  # fmt: skip
        assert [r.token for r in got[1:]] == [-1, -1, -1, 39, -1]
        assert got[0] == sample(rows[:1], states[:1], [4], n)[0]


def test_wrong_shapes_and_ranges_are_errors() -> None:
    rows = np.zeros((2, 8), dtype=np.float32)
    state = make_state(SamplingParams(), [], seed=1)
    for states, positions, num_ids, word in [
        ([state], [0, 0], 8, "states"),
        ([state] * 2, [0], 8, "positions"),
        ([state] * 2, [0, -1], 8, "position"),
        ([state] * 2, [0, 2**32], 8, "position"),
        ([state] * 2, [0, 0], 9, "num_ids"),
        ([state] * 2, [0, 0], 0, "num_ids"),
    ]:
        with pytest.raises(ValueError, match=word):
            sample(rows, states, positions, num_ids)
    enough, short = np.zeros(2, np.uint32), np.zeros(1, np.uint32)
    long_rows = np.zeros((2, 33), dtype=np.float32)
    for masks, word in [
        ([None], "masks 1"),
        ([enough, short], "a mask has 1 words"),
        ([], "masks"),
    ]:
        with pytest.raises(ValueError, match=word):
            sample(long_rows, [state] * 2, [0, 0], 33, masks=masks)
    for wrong in (enough.astype(np.int64), [1, 2], np.zeros(4, np.uint32)[::2], "ab"):
        with pytest.raises(TypeError):
            sample(long_rows, [state] * 2, [0, 0], 33, masks=[enough, wrong])  # type: ignore
    with pytest.raises(ValueError, match="targets holds id 8"):
        token_logprobs(rows, [0, 8], 1, 8)
    with pytest.raises(TypeError):
        sample(rows.astype(np.float64), [state] * 2, [0, 0], 8)  # type: ignore[arg-type]
    assert sample(rows[:0], [], [], 8) == []


# ---- masks --------------------------------------------------------------------------------------


def test_a_mask_leaves_the_models_own_logprobs_and_shows_in_the_trace() -> None:
    rng = np.random.default_rng(4)
    row = rng.standard_normal((1, 3000)).astype(np.float32)
    state = make_state(SamplingParams(temperature=0, logprobs=2, trace=2), [], seed=1)
    free = sample(row, [state], [0], 3000)[0]
    allowed = {i for i in range(3000) if i % 97 == 5}
    got = sample(row, [state], [0], 3000, masks=[mask_words(allowed, 3000)])[0]
    assert got.token == max(allowed, key=lambda i: row[0, i])
    assert got.logprobs is not None
    assert free.logprobs is not None
    assert got.logprobs.top == free.logprobs.top
    assert got.logprobs.rank > 1
    assert got.trace is not None
    bias = got.trace.stages[0]
    assert bias.active
    assert (bias.before.num_candidates, bias.after.num_candidates) == (3000, len(allowed))


def test_masked_rows_leave_their_neighbours_alone() -> None:
    rng = np.random.default_rng(6)
    num_ids = 60_000
    rows = rng.standard_normal((24, num_ids)).astype(np.float32)
    states = [make_state(SamplingParams(temperature=i % 2), [], seed=i) for i in range(24)]
    masks = [None if i % 3 else mask_words({i, 40_000 + i}, num_ids) for i in range(24)]
    nothing = np.zeros(num_ids // 32 + 1, np.uint32)
    masks[9] = nothing
    free = sample(rows, states, range(24), num_ids)
    pool = _core.Pool(2)
    for workers in (None, pool):
        got = sample(rows, states, range(24), num_ids, workers, masks)
        for i in range(24):
            if i == 9:
                assert got[i].status is RowStatus.NO_CANDIDATES
            elif i % 3:
                assert got[i] == free[i]
            else:
                assert got[i].token in (i, 40_000 + i)


# ---- seeds and neighbours (rows 26-28) ----------------------------------------------------------


def test_a_seeded_request_never_feels_its_neighbours() -> None:
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((8, 500)) * 2).astype(np.float32)
    seeded = make_state(SamplingParams(seed=42, logprobs=3), [1, 2, 3])
    assert seeded.seed == 42
    alone = [sample(rows[:1], [seeded], [p], 500)[0] for p in range(30)]
    others = [make_state(SamplingParams(temperature=0.1 * i), []) for i in range(1, 8)]
    for place in range(8):
        order = [*others[:place], seeded, *others[place:]]
        mixed = np.concatenate([rows[1 : place + 1], rows[:1], rows[place + 1 :]])
        together = [sample(mixed, order, [p] * 8, 500)[place] for p in range(30)]
        assert together == alone
    other = make_state(SamplingParams(seed=43, logprobs=3), [1, 2, 3])
    assert [sample(rows[:1], [other], [p], 500)[0] for p in range(30)] != alone


def test_rows_shared_by_workers_equal_rows_one_by_one() -> None:
    """Enough logits that a pool is used: other threads, other order, same results and traces."""
    rng = np.random.default_rng(8)
    num_rows, num_ids = 24, 50_000
    rows = (rng.standard_normal((num_rows, num_ids)) * 3).astype(np.float32)
    rows[5, 7] = math.nan
    kinds = [
        SamplingParams(temperature=0, logprobs=3),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, trace=4),
        SamplingParams(typical_p=0.9, repetition_penalty=1.2),
        SamplingParams(temperature=2.0, top_p=0.99, logprobs=2, logprobs_mode="processed"),
        SamplingParams(),
    ]
    states = [make_state(kinds[i % 5], [1, 2, 3], seed=i) for i in range(num_rows)]
    positions = list(range(100, 100 + num_rows))
    alone = [
        sample(rows[i : i + 1], [states[i]], [positions[i]], num_ids)[0] for i in range(num_rows)
    ]
    targets = rng.integers(0, num_ids, num_rows)
    scores = token_logprobs(rows, targets, 3, num_ids)
    for num_threads in (2, 5):
        pool = _core.Pool(num_threads)
        for _ in range(3):
            assert sample(rows, states, positions, num_ids, pool) == alone
            assert token_logprobs(rows, targets, 3, num_ids, pool) == scores
    assert scores[5] is None
    assert alone[5].status is RowStatus.NON_FINITE


def test_unseeded_requests_get_a_seed_that_repeats_them() -> None:
    flat = np.zeros((1, 300), dtype=np.float32)
    first, second = (make_state(SamplingParams(), []) for _ in range(2))
    assert first.seed != second.seed
    again = make_state(SamplingParams(seed=first.seed), [])
    drawn = [sample(flat, [first], [i], 300)[0].token for i in range(20)]
    assert drawn == [sample(flat, [again], [i], 300)[0].token for i in range(20)]


# ---- log-probabilities --------------------------------------------------------------------------


def test_logprobs_agree_with_numpy_float64() -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((4, 5000)) * 4).astype(np.float32)
    z = rows.astype(np.float64)
    want = z - z.max(axis=1, keepdims=True)
    want -= np.log(np.exp(want).sum(axis=1, keepdims=True))
    targets = [0, 4999, int(rows[2].argmax()), 17]
    for i, got in enumerate(token_logprobs(rows, targets, 20, 5000)):
        assert got is not None
        order = np.argsort(-z[i], kind="stable")
        assert got.logprob == pytest.approx(want[i, targets[i]], abs=1e-12)
        assert got.rank == int(np.nonzero(order == targets[i])[0][0]) + 1
        assert [t for t, _ in got.top] == order[:20].tolist()
        assert [x for _, x in got.top] == pytest.approx(want[i, order[:20]], abs=1e-12)
    best = token_logprobs(rows, rows.argmax(axis=1), 1, 5000)
    assert all(b is not None and b.logprob == b.top[0][1] and b.rank == 1 for b in best)
    everything = token_logprobs(rows[:1], [0], 5000, 5000)[0]
    assert everything is not None
    assert sum(math.exp(x) for _, x in everything.top) == pytest.approx(1, abs=1e-12)
    rows[1, 5] = math.nan
    assert [r is None for r in token_logprobs(rows, targets, 1, 5000)] == [False, True] + [
        False
    ] * 2


# ---- trace --------------------------------------------------------------------------------------


def test_trace_agrees_with_numpy_and_changes_no_draw() -> None:
    rng = np.random.default_rng(2)
    row = (rng.standard_normal((1, 1000)) * 3).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_k=100, typical_p=0.95, top_p=0.9, min_p=0.01)
    for position in range(20):
        plain = draw_one(row, params, position)
        traced = draw_one(row, params.replace(trace=1000), position)
        assert traced.token == plain.token
        assert traced.trace is not None
        for stage in traced.trace.stages:
            for snapshot in (stage.before, stage.after):
                p = np.array([x for _, x in snapshot.top])
                assert len(p) == snapshot.num_candidates
                assert snapshot.tail_mass == 0
                assert p.sum() == pytest.approx(1, abs=1e-12)
                assert snapshot.entropy == pytest.approx(-(p * np.log(p)).sum(), abs=1e-10)
        sizes = [s.after.num_candidates for s in traced.trace.stages]
        assert sizes[:4] == [1000, 1000, 1000, 100]
        assert sizes == sorted(sizes, reverse=True)
    plain_values = traced.trace.to_dict()
    assert plain_values["token"] == traced.token
    assert [s["name"] for s in plain_values["stages"]] == list(DEFAULT_STAGES)
    assert plain_values["stages"][-1]["after"]["num_candidates"] == sizes[-1]
