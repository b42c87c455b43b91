"""Rounds of speculation on toy models, many seeds at once, through the engine's own drawing code;
biased rules; and chi-square.

A model is a function of the tokens drawn so far: history → row of logits. Nothing here knows a
formula of the rules: tokens come from sampler.draw and draw_drafts, probabilities from the
sampler's oracle.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import sampler_oracle as oracle

from headrace.engine import sampler
from headrace.engine.params import SamplingParams
from headrace.engine.sampler import SamplerState, make_state
from headrace.engine.speculation.drafter import Distribution
from headrace.engine.speculation.rejection import drafted, draw_drafts
from headrace.native import _core

History = tuple[int, ...]
Model = Callable[[History], npt.NDArray[np.float32]]

PROMPT = [1, 2, 2]
CHUNK = 256  # rows of one call

#: The chains of stages that the rules are tried with.
CHAINS = {
    "plain": SamplingParams(),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.3, top_k=4),
    "top_p": SamplingParams(top_p=0.7),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.4, frequency_penalty=0.5
    ),
    "all": SamplingParams(
        temperature=0.8, top_k=6, top_p=0.9, min_p=0.02, repetition_penalty=1.3,
        presence_penalty=0.3, logit_bias={3: 0.7}, banned_token_ids=[6],
    ),
}  # fmt: skip


def toy(vocab: int, seed: int, scale: float = 1.3) -> Model:
    """A model whose logits after every history are noise of their own."""
    rows: dict[History, npt.NDArray[np.float32]] = {}

    def model(history: History) -> npt.NDArray[np.float32]:
        if history not in rows:
            rng = np.random.default_rng([seed, *history, len(history)])
            rows[history] = (rng.standard_normal(vocab) * scale).astype(np.float32)
        return rows[history]

    return model


def near(target: Model, seed: int, share: float = 0.6) -> Model:
    """A draft model: the target with noise."""

    def model(history: History) -> npt.NDArray[np.float32]:
        row = target(history)
        noise = toy(len(row), seed)(history)
        return (share * row + (1 - share) * 1.5 * noise).astype(np.float32)

    return model


def guess(model: Model) -> Callable[[History], int]:
    """A draft without chance: what the model likes second."""
    return lambda history: int(np.argsort(-model(history), kind="stable")[1])


# ---- drafters -----------------------------------------------------------------------------------


@dataclass
class Sample:
    """One seed's text so far, and the drafts of the round."""

    state: SamplerState
    tokens: History = ()
    ahead: SamplerState | None = None
    drafts: list[int] = field(default_factory=list)
    drawn_from: list[Distribution | None] = field(default_factory=list)
    in_round: bool = True  # no draft of the round was rejected

    @property
    def drafted(self) -> History:
        return (*self.tokens, *self.drafts)

    def follow(self, token: int, drawn_from: Distribution | None) -> None:
        assert self.ahead is not None
        self.ahead.accept(token)
        self.drafts.append(token)
        self.drawn_from.append(drawn_from)


#: Adds one draft to every sample.
Drafter = Callable[[Sequence[Sample]], None]


def rejection_drafter(model: Model) -> Drafter:
    """Draws from the model with the stream of drafts."""

    def draft(samples: Sequence[Sample]) -> None:
        def row(group: Sequence[Sample], rows: npt.NDArray[np.float32]) -> None:
            states = [s.ahead for s in group if s.ahead is not None]
            drawn = draw_drafts(rows, states, positions(group, True), rows.shape[1])
            for sample, proposal in zip(group, drawn, strict=True):
                assert proposal is not None
                sample.follow(*proposal)

        by_history(samples, model, lambda s: s.drafted, row)

    return draft


def coupled_drafter(model: Model) -> Drafter:
    """Draws from the model with the request's own noise."""

    def draft(samples: Sequence[Sample]) -> None:
        def row(group: Sequence[Sample], rows: npt.NDArray[np.float32]) -> None:
            states = [s.ahead for s in group if s.ahead is not None]
            drawn = sampler.draw(rows, states, positions(group, True), rows.shape[1])
            for sample, token in zip(group, drawn, strict=True):
                assert isinstance(token, int)
                sample.follow(token, None)

        by_history(samples, model, lambda s: s.drafted, row)

    return draft


def certain_drafter(choose: Callable[[History], int]) -> Drafter:
    """Guesses without chance, as n-grams do."""

    def draft(samples: Sequence[Sample]) -> None:
        for sample in samples:
            sample.follow(choose(sample.drafted), None)

    return draft


# ---- rules --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tested:
    """A draft on trial. position: absolute, of the token to draw."""

    state: SamplerState
    position: int
    draft: int
    drawn_from: Distribution | None


#: (logits [n, V], n drafts) → a token each.
Rule = Callable[[npt.NDArray[np.float32], Sequence[Tested]], list[sampler.Drawn]]


def coupled(logits: npt.NDArray[np.float32], tested: Sequence[Tested]) -> list[sampler.Drawn]:
    """The target's own draw."""
    return sampler.draw(
        logits, [t.state for t in tested], [t.position for t in tested], logits.shape[1]
    )


def rejection(logits: npt.NDArray[np.float32], tested: Sequence[Tested]) -> list[sampler.Drawn]:
    """The rejection rule, as the engine's rounds call it."""
    return sampler.draw(
        logits,
        [t.state for t in tested],
        [t.position for t in tested],
        logits.shape[1],
        drafts=[drafted(t.draft, t.drawn_from) for t in tested],
    )


# ---- rounds -------------------------------------------------------------------------------------


@dataclass
class Played:
    """texts: one per seed. tested, accepted: drafts of each seed's first position."""

    texts: list[History]
    num_tested: int = 0
    num_accepted: int = 0


def play(
    rule: Rule,
    draft: Drafter,
    target: Model,
    params: SamplingParams,
    num_seeds: int,
    *,
    num_tokens: int = 2,
    max_drafts: int = 2,
    first_seed: int = 0,
) -> Played:
    """num_seeds texts of num_tokens, each with a seed of its own, in rounds of 1 … max_drafts
    drafts: how many is fixed by the seed's number, before anything is drawn."""
    first = make_state(params, PROMPT, seed=0)
    assert first.num_output == 0
    samples = [
        Sample(make_state(params, PROMPT, seed=scatter(first_seed + i))) for i in range(num_seeds)
    ]
    played = Played([])
    running = list(enumerate(samples))
    while running:
        for _, sample in running:
            sample.drafts, sample.drawn_from, sample.in_round = [], [], True
            sample.ahead = sample.state.fork(0)
        for step in range(max_drafts):
            draft(
                [s for i, s in running if step < 1 + i % max_drafts and room(s, num_tokens) > step]
            )
        _judge(rule, [s for _, s in running], target, num_tokens, played)
        running = [(i, s) for i, s in running if len(s.tokens) < num_tokens]
    played.texts = [s.tokens for s in samples]
    return played


def _judge(
    rule: Rule, samples: list[Sample], target: Model, num_tokens: int, played: Played
) -> None:
    """One step's drawing: row j of every sample whose first j drafts were accepted."""

    def test(group: Sequence[Sample], rows: npt.NDArray[np.float32]) -> None:
        asked = [
            Tested(s.state, place, s.drafts[0], s.drawn_from[0])
            for s, place in zip(group, positions(group, False), strict=True)
        ]
        drawn = rule(rows, asked)
        for sample, token in zip(group, drawn, strict=True):
            assert isinstance(token, int)
            draft = sample.drafts.pop(0)
            sample.drawn_from.pop(0)
            if not sample.tokens:
                played.num_tested += 1
                played.num_accepted += token == draft
            sample.in_round = token == draft
            put(sample, token)

    def finish(group: Sequence[Sample], rows: npt.NDArray[np.float32]) -> None:
        states = [s.state for s in group]
        drawn = sampler.draw(rows, states, positions(group, False), rows.shape[1])
        for sample, token in zip(group, drawn, strict=True):
            assert isinstance(token, int)
            sample.in_round = False
            put(sample, token)

    alive = samples
    while alive:
        by_history([s for s in alive if s.drafts], target, lambda s: s.tokens, test)
        last = [s for s in alive if s.in_round and not s.drafts and room(s, num_tokens)]
        by_history(last, target, lambda s: s.tokens, finish)
        alive = [s for s in alive if s.in_round and room(s, num_tokens)]


def put(sample: Sample, token: int) -> None:
    sample.tokens = (*sample.tokens, token)
    sample.state.accept(token)


def room(sample: Sample, num_tokens: int) -> int:
    return num_tokens - len(sample.tokens)


def positions(group: Sequence[Sample], ahead: bool) -> list[int]:
    return [len(PROMPT) + len(s.drafted if ahead else s.tokens) for s in group]


def scatter(number: int) -> int:
    """A 64-bit seed of a number: seeds that differ in few bits are tried elsewhere."""
    return (number * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64


def by_history(
    samples: Sequence[Sample],
    model: Model,
    history: Callable[[Sample], History],
    work: Callable[[Sequence[Sample], npt.NDArray[np.float32]], None],
) -> None:
    """Calls work(group, rows [≥ len(group), V]) for groups of samples with one history."""
    groups: dict[History, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[history(sample)].append(sample)
    for key, group in groups.items():
        rows = np.repeat(model(key)[None], min(len(group), CHUNK), axis=0)
        for first in range(0, len(group), CHUNK):
            part = group[first : first + CHUNK]
            work(part, rows[: len(part)])


# ---- what must come out -------------------------------------------------------------------------


def law(
    model: Model, params: SamplingParams, num_tokens: int, given: History = ()
) -> dict[History, float]:
    """The exact distribution of the first tokens of plain decoding, by the sampler's oracle."""
    if num_tokens == 0:
        return {given: 1.0}
    result: dict[History, float] = {}
    for token, p in next_law(model, params, given).items():
        for text, rest in law(model, params, num_tokens - 1, (*given, token)).items():
            result[text] = p * rest
    return result


def next_law(model: Model, params: SamplingParams, given: History) -> dict[int, float]:
    """The exact distribution of one token."""
    row = model(given)
    drawn = oracle.draw(row, len(row), params, PROMPT, list(given), (), 0, 0, len(given))
    assert drawn.final is not None
    return oracle.probabilities(drawn.final)


def coupled_acceptance(q: dict[int, float], p: dict[int, float]) -> float:
    """P(draft = target's token) where both are drawn with the same Gumbel noise."""
    return sum(coupled_joint(q, p, v, v) for v in q if v in p)


def coupled_joint(q: dict[int, float], p: dict[int, float], v: int, w: int) -> float:
    """P(draft = v, target's token = w) with shared noise, in closed form.

    Gumbel-max picks the least Eᵤ/pᵤ, and the least Eᵤ/qᵤ, of the same exponential variables E. With
    s = E_v and t = E_w, every other Eᵤ is at least max(s pᵤ/p_v, t qᵤ/q_w). For v = w that gives
    1 / Σᵤ max(qᵤ/q_v, pᵤ/p_v); else, with r = t/s from p_w/p_v to q_w/q_v, the integral of
    1 / (1 + r + Σᵤ max(pᵤ/p_v, r qᵤ/q_w))², elementary between the points where a max turns.
    """
    if q.get(w, 0.0) == 0.0 or p.get(v, 0.0) == 0.0:
        return 0.0
    others = [u for u in {*q, *p} if u not in (v, w)]
    a = {u: p.get(u, 0.0) / p[v] for u in others}
    b = {u: q.get(u, 0.0) / q[w] for u in others}
    if v == w:
        return 1.0 / (1.0 + sum(max(a[u], b[u]) for u in others))
    low = p.get(w, 0.0) / p[v]
    high = q[w] / q[v] if q.get(v, 0.0) > 0.0 else math.inf
    if high <= low:
        return 0.0
    turns = sorted({a[u] / b[u] for u in others if b[u] > 0.0 and low < a[u] / b[u] < high})
    total = 0.0
    for r0, r1 in pairwise([low, *turns, high]):
        middle = r0 + 1.0 if r1 == math.inf else (r0 + r1) / 2
        flat = 1.0 + sum(a[u] for u in others if a[u] >= middle * b[u])
        slope = 1.0 + sum(b[u] for u in others if a[u] < middle * b[u])
        end = 0.0 if r1 == math.inf else 1.0 / (flat + slope * r1)
        total += (1.0 / (flat + slope * r0) - end) / slope
    return total


def every_text(vocab: int, length: int) -> list[History]:
    return list(product(range(vocab), repeat=length))


def p_value(counts: Counter[History], law: dict[History, float]) -> float:
    """Pearson's chi-square; cells with fewer than 8 expected texts are counted as one. 0 if
    something came out that cannot."""
    total = sum(counts.values())
    if any(law.get(text, 0.0) == 0.0 for text in counts):
        return 0.0
    large = [text for text, p in law.items() if p * total >= 8]
    observed = [counts[text] for text in large]
    expected = [law[text] * total for text in large]
    if total - sum(expected) >= 8:
        observed.append(total - sum(observed))
        expected.append(total - sum(expected))
    x = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return chi_square_tail(x, len(expected) - 1)


def chi_square_tail(x: float, degrees: int) -> float:
    """P(χ² > x): the finite sums for whole and half numbers of degrees / 2."""
    half = x / 2
    if degrees % 2 == 0:
        term = total = math.exp(-half)
        for k in range(1, degrees // 2):
            term *= half / k
            total += term
        return total
    total = math.erfc(math.sqrt(half))
    term = 2 * math.sqrt(half / math.pi) * math.exp(-half)
    for k in range(1, (degrees - 1) // 2 + 1):
        total += term
        term *= half / (k + 0.5)
    return total


# ---- rules that are wrong on purpose ------------------------------------------------------------


def accepts_always(
    logits: npt.NDArray[np.float32], tested: Sequence[Tested]
) -> list[sampler.Drawn]:
    """Keeps every draft."""
    return [t.draft for t in tested]


def does_not_subtract(
    logits: npt.NDArray[np.float32], tested: Sequence[Tested]
) -> list[sampler.Drawn]:
    """Draws from q after a rejection, not from what p leaves of it."""
    right, plain = rejection(logits, tested), coupled(logits, tested)
    return [
        token if token == t.draft else other
        for t, token, other in zip(tested, right, plain, strict=True)
    ]


def accepts_by_the_drafts_noise(
    logits: npt.NDArray[np.float32], tested: Sequence[Tested]
) -> list[sampler.Drawn]:
    """Takes its uniform number from the stream that drew the draft."""
    states, places = [t.state for t in tested], [t.position for t in tested]
    tokens: list[sampler.Drawn] = []
    for t, target in zip(tested, draw_drafts(logits, states, places, logits.shape[1]), strict=True):
        assert target is not None
        assert t.drawn_from is not None
        q, p = listed(target[1]), listed(t.drawn_from)
        first, second = _core.philox([0, t.position, 0, 1], t.state.seed)[:2]
        u = ((first << 20 | second >> 12) + 0.5) / 2**52
        if u < oracle.kept_with(q.get(t.draft, 0.0), p[t.draft]):
            tokens.append(t.draft)
        else:
            rest = oracle.uniform(t.state.seed, t.position, 0, 3)
            tokens.append(oracle.pick(oracle.residual(q, p), rest))
    return tokens


def listed(d: Distribution) -> dict[int, float]:
    return dict(zip(d.ids.tolist(), d.probs.tolist(), strict=True))


def drafter_before_top_p(model: Model, params: SamplingParams) -> Drafter:
    """Draws after all stages, and reports what the distribution was before top_p."""
    right = rejection_drafter(model)

    @cache
    def before(history: History) -> Distribution:
        p = next_law(model, params.replace(top_p=1.0), history)
        return Distribution(np.array(list(p), np.int32), np.array(list(p.values())))

    def draft(samples: Sequence[Sample]) -> None:
        right(samples)
        for sample in samples:
            sample.drawn_from[-1] = before(sample.drafted[:-1])

    return draft


def drafter_that_looks(model: Model, least: float) -> Drafter:
    """Chooses γ after it has seen the sample: drafts that it finds improbable are not tested."""
    right = rejection_drafter(model)

    def draft(samples: Sequence[Sample]) -> None:
        going = [s for s in samples if s.ahead is not None]
        right(going)
        for sample in going:
            p = sample.drawn_from[-1]
            assert p is not None
            if p.probs[p.ids == sample.drafts[-1]][0] < least:
                sample.drafts.pop()
                sample.drawn_from.pop()
                sample.ahead = None  # no further draft in this round

    return draft
