"""Proofs on vocabularies of two and four tokens: every path of rejection rounds, the coupled rule's
joint law, and every sequence of drafts.

The paths are those of the sampler's own functions: distributions from draw_drafts, probabilities of
a decision from acceptance_law, which calls what sampler.draw calls.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from toy_rounds import (
    CHAINS,
    PROMPT,
    History,
    Model,
    certain_drafter,
    coupled,
    coupled_acceptance,
    coupled_joint,
    every_text,
    guess,
    law,
    near,
    play,
    scatter,
    toy,
)

from headrace.engine import sampler
from headrace.engine.params import SamplingParams
from headrace.engine.sampler import make_state
from headrace.engine.speculation.drafter import Distribution
from headrace.engine.speculation.rejection import acceptance_law, draw_drafts

#: (probability that the draft is kept, probabilities of the target's ids if it is not)
Law = Callable[[Distribution, int, Distribution | None], tuple[float, np.ndarray]]
#: Target, draft token, what it was drawn from.
Source = Callable[[History], list[tuple[int, float, Distribution | None]]]


def processed(model: Model, params: SamplingParams, history: History) -> Distribution:
    """After all stages, penalties for the tokens before included."""
    row = model(history)
    state = make_state(params, PROMPT, seed=0)
    for token in history:
        state.accept(token)
    drawn = draw_drafts(row[None], [state], [len(history)], len(row))[0]
    assert drawn is not None
    return drawn[1]


def stochastic(model: Model, params: SamplingParams) -> Source:
    @cache
    def source(history: History) -> list[tuple[int, float, Distribution | None]]:
        p = processed(model, params, history)
        return [(int(i), float(x), p) for i, x in zip(p.ids, p.probs, strict=True)]

    return source


def certain(model: Model) -> Source:
    return lambda history: [(guess(model)(history), 1.0, None)]


def drafts_of(source: Source, history: History, count: int):
    """Every sequence of drafts with its probability."""
    if count == 0:
        yield 1.0, []
        return
    for token, p, drawn_from in source(history):
        for rest_p, rest in drafts_of(source, (*history, token), count - 1):
            yield p * rest_p, [(token, drawn_from), *rest]


def enumerate_texts(
    target: Model, source: Source, params: SamplingParams, gamma: Callable[[History], int],
    length: int, decide: Law = acceptance_law,
) -> tuple[dict[History, float], int]:  # fmt: skip
    """Distribution of the first tokens: all drafts × all outcomes of every test, round after round.
    With it the number of paths of single rounds that were walked."""
    num_paths = 0

    @cache
    def q(history: History) -> Distribution:
        return processed(target, params, history)

    @cache
    def round_law(history: History) -> dict[History, float]:
        """What one round appends, with probabilities."""
        nonlocal num_paths
        result: dict[History, float] = defaultdict(float)
        for path, drafts in drafts_of(source, history, gamma(history)):
            kept: History = ()
            for draft, drawn_from in drafts:
                here = q((*history, *kept))
                accepted, residual = decide(here, draft, drawn_from)
                assert 0.0 <= accepted <= 1.0
                for token, r in zip(here.ids.tolist(), residual.tolist(), strict=True):
                    result[(*kept, token)] += path * (1.0 - accepted) * r
                    num_paths += 1
                path *= accepted
                kept = (*kept, draft)
                if path == 0.0:  # what cannot be kept is not gone on from
                    break
            else:
                here = q((*history, *kept))
                for token, x in zip(here.ids.tolist(), here.probs.tolist(), strict=True):
                    result[(*kept, token)] += path * x
                    num_paths += 1
        return result

    @cache
    def texts(history: History) -> dict[History, float]:
        if len(history) >= length:
            return {history[:length]: 1.0}
        result: dict[History, float] = defaultdict(float)
        for new, p in round_law(history).items():
            if p > 0.0:
                for text, rest in texts((*history, *new)).items():
                    result[text] += p * rest
        return result

    return dict(texts(())), num_paths


def error_of(got: dict[History, float], want: dict[History, float]) -> float:
    """The largest difference of a text's probability, and of a token's at any one position."""
    texts = max(abs(got.get(t, 0.0) - want.get(t, 0.0)) for t in {*got, *want})
    length = len(next(iter(want)))
    places = 0.0
    for place in range(length):
        difference: dict[int, float] = defaultdict(float)
        for text, p in got.items():
            difference[text[place]] += p
        for text, p in want.items():
            difference[text[place]] -= p
        places = max(places, *(abs(d) for d in difference.values()))
    return max(texts, places)


SCHEDULES: dict[str, Callable[[History], int]] = {
    "1": lambda history: 1,
    "2": lambda history: 2,
    "3": lambda history: 3,
    "by history": lambda history: sum(history) % 4,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("vocab", [2, 4])
def test_every_path_of_rejection_rounds(vocab: int, schedule: str) -> None:
    """Joint law of the first γ + 1 tokens, through as many rounds as that takes. A γ that depends
    on the tokens before the round is fine."""
    gamma = SCHEDULES[schedule]
    target = toy(vocab, seed=1)
    plain = SamplingParams()
    for draft in (near(target, 2), toy(vocab, 3, scale=4.0), target):
        for source in (stochastic(draft, plain), certain(draft)):
            want = law(target, plain, 4)
            got, num_paths = enumerate_texts(target, source, plain, gamma, 4)
            assert error_of(got, want) < 1e-12
            assert sum(got.values()) == pytest.approx(1.0, abs=1e-12)
            assert num_paths >= vocab * 2


@pytest.mark.parametrize("chain", [*CHAINS, "greedy"])
def test_every_path_under_all_stages(chain: str) -> None:
    """Penalties move with the drafts; what top-k and top-p leave of p and q differs, and can be
    without a common token; at temperature 0 both are certain."""
    params = CHAINS.get(chain, SamplingParams(temperature=0.0))
    if params.banned_token_ids:
        params = params.replace(banned_token_ids=[1])
    target = toy(4, seed=5)
    params = params.replace(top_k=2 if params.top_k else 0)
    for draft in (near(target, 6), lambda history: -target(history)):
        for source in (stochastic(draft, params), certain(draft)):
            got, _ = enumerate_texts(target, source, params, lambda history: 2, 3)
            assert error_of(got, law(target, params, 3)) < 1e-12


def accepts_always(q: Distribution, draft: int, p: Distribution | None) -> tuple[float, np.ndarray]:
    return 1.0, q.probs


def not_subtracted(q: Distribution, draft: int, p: Distribution | None) -> tuple[float, np.ndarray]:
    return acceptance_law(q, draft, p)[0], q.probs


def another_p(q: Distribution, draft: int, p: Distribution | None) -> tuple[float, np.ndarray]:
    """p as it was before a temperature of 2."""
    assert p is not None
    return acceptance_law(q, draft, Distribution(p.ids, p.probs**2 / (p.probs**2).sum()))


@pytest.mark.parametrize("wrong", [accepts_always, not_subtracted, another_p])
def test_wrong_rules_are_far_off(wrong: Law) -> None:
    target = toy(4, seed=1)
    plain = SamplingParams()
    source = stochastic(near(target, 2), plain)
    got, _ = enumerate_texts(target, source, plain, lambda history: 2, 3, wrong)
    assert error_of(got, law(target, plain, 3)) > 1e-2


def test_a_drawn_draft_may_be_taken_for_certain() -> None:
    """Right whatever the draft and however it was chosen; only fewer drafts are kept."""
    target, plain = toy(4, seed=1), SamplingParams()
    source = stochastic(near(target, 2), plain)

    def certain_though_drawn(q: Distribution, draft: int, p: Distribution | None) -> Any:
        assert acceptance_law(q, draft, None)[0] <= acceptance_law(q, draft, p)[0]
        return acceptance_law(q, draft, None)

    got, _ = enumerate_texts(target, source, plain, lambda history: 2, 3, certain_though_drawn)
    assert error_of(got, law(target, plain, 3)) < 1e-12


def test_the_enumeration_covers_rounds_of_every_length() -> None:
    target = toy(4, seed=1)
    source = stochastic(near(target, 2), SamplingParams())
    _, num_paths = enumerate_texts(target, source, SamplingParams(), lambda history: 3, 4)
    one_round = (
        4 * 4**3 + 4 * 4**3 + 4 * 4**3 + 4 * 4**3
    )  # the first, second, third test, the bonus
    assert num_paths >= one_round


def test_acceptance_is_the_sum_of_the_smaller_probabilities() -> None:
    """Σ p · kept = Σ min(p, q) = 1 − total variation."""
    for seed in range(50):
        target, draft = toy(4, seed), toy(4, seed + 1000, scale=3.0)
        q, p = (processed(m, SamplingParams(), ()) for m in (target, draft))
        alpha = sum(x * acceptance_law(q, i, p)[0] for i, x in zip(p.ids, p.probs, strict=True))
        assert alpha == pytest.approx(np.minimum(q.probs, p.probs).sum(), abs=1e-12)
        assert alpha == pytest.approx(1 - np.abs(q.probs - p.probs).sum() / 2, abs=1e-12)


def test_residuals_that_rounding_empties() -> None:
    """p above q everywhere by rounding: what is left is q itself, never nothing."""
    ids = np.arange(4, dtype=np.int32)
    q = np.array([0.1, 0.2, 0.3, 0.4])
    p = np.nextafter(q, 1)
    kept, residual = acceptance_law(Distribution(ids, q), 2, Distribution(ids, p))
    assert kept < 1.0
    assert np.abs(residual - q).max() < 1e-15


# ---- the coupled rule ---------------------------------------------------------------------------


def two_laws(vocab: int, seed: int) -> tuple[dict[int, float], dict[int, float]]:
    plain = SamplingParams()
    q, p = (processed(toy(vocab, s, scale=2.0), plain, ()) for s in (seed, seed + 500))
    return tuple(dict(zip(d.ids.tolist(), d.probs.tolist(), strict=True)) for d in (q, p))


@pytest.mark.parametrize("vocab", [2, 4])
def test_joint_law_of_the_coupled_rule_in_closed_form(vocab: int) -> None:
    """Its marginals are p and q: the target's token has the target's law. Its diagonal is
    Σ 1 / Σ max(q_w/q_v, p_w/p_v), and also what numerical integration of the noise gives."""
    for seed in range(20):
        q, p = two_laws(vocab, seed)
        joint = {(v, w): coupled_joint(q, p, v, w) for v, w in product(range(vocab), repeat=2)}
        for i in range(vocab):
            assert sum(joint[v, i] for v in range(vocab)) == pytest.approx(q[i], abs=1e-12)
            assert sum(joint[i, w] for w in range(vocab)) == pytest.approx(p[i], abs=1e-12)
        formula = sum(
            1 / sum(max(q[w] / q[v], p[w] / p[v]) for w in range(vocab)) for v in range(vocab)
        )
        assert coupled_acceptance(q, p) == pytest.approx(formula, abs=1e-12)
        alpha = sum(min(q[v], p[v]) for v in range(vocab))
        assert alpha / (2 - alpha) - 1e-12 <= formula <= alpha + 1e-12
        if seed < 3:
            assert formula == pytest.approx(integrated(q, p), rel=1e-6)


def integrated(q: dict[int, float], p: dict[int, float]) -> float:
    """Σ over v of ∫ density of E_v · Π P(every other E is large enough), by Simpson's rule."""
    x = np.linspace(0.0, 60.0, 600_001)
    total = 0.0
    for v in q:
        f = np.exp(-x)
        for w in q:
            if w != v:
                f = f * np.exp(-np.maximum(x * q[w] / q[v], x * p[w] / p[v]))
        total += (x[1] / 3) * (f[0] + f[-1] + 4 * f[1:-1:2].sum() + 2 * f[2:-1:2].sum())
    return float(total)


@pytest.mark.parametrize("vocab", [2, 4])
def test_coupled_draws_follow_the_joint_law(vocab: int) -> None:
    """(draft, token) of 20,000 positions, drawn as drafter and target draw them; each cell within
    4.5 standard errors."""
    target, draft = toy(vocab, 7), near(toy(vocab, 7), 8)
    q, p = (
        dict(zip(d.ids.tolist(), d.probs.tolist(), strict=True))
        for d in (processed(m, SamplingParams(), ()) for m in (target, draft))
    )
    count = 20_000
    state = make_state(SamplingParams(), PROMPT, seed=77)
    drawn = [
        np.array(
            sampler.draw(np.repeat(m(())[None], count, 0), [state] * count, range(count), vocab)
        )
        for m in (draft, target)
    ]
    for v, w in product(range(vocab), repeat=2):
        expected = coupled_joint(q, p, v, w)
        found = ((drawn[0] == v) & (drawn[1] == w)).mean()
        assert abs(found - expected) <= 4.5 * math.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("vocab", [2, 4])
@pytest.mark.parametrize("chain", ["plain", "penalties"])
def test_every_sequence_of_drafts_gives_the_plain_text(vocab: int, chain: str) -> None:
    """γ = 3: all drafts of all three places, 40 seeds each, next to drawing token by token."""
    params, target = CHAINS[chain], toy(vocab, 9)
    plain: list[History] = []
    for number in range(40):
        state = make_state(params, PROMPT, seed=scatter(number))
        text: History = ()
        for _ in range(4):
            place = len(PROMPT) + len(text)
            [token] = sampler.draw(target(text)[None], [state], [place], vocab)
            assert isinstance(token, int)
            text = (*text, token)
            state.accept(token)
        plain.append(text)
    assert len(set(plain)) > 2
    for drafts in every_text(vocab, 3):
        # At every place the draft of that place, whatever came before it.
        choose = lambda history, drafts=drafts: drafts[len(history) % 3]  # noqa: E731
        played = play(
            coupled, certain_drafter(choose), target, params, 40, num_tokens=4, max_drafts=3
        )
        assert played.texts == plain
