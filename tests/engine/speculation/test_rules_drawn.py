"""Both rules draw the target's distribution: the first two tokens of 50,000 seeds, jointly, against
the exact law (faults 38-40); wrong rules are caught by the same test; α = Σ min(p, q)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from toy_rounds import (
    CHAINS,
    accepts_always,
    accepts_by_the_drafts_noise,
    certain_drafter,
    chi_square_tail,
    coupled,
    coupled_acceptance,
    coupled_drafter,
    does_not_subtract,
    drafter_before_top_p,
    drafter_that_looks,
    guess,
    law,
    near,
    next_law,
    p_value,
    play,
    rejection,
    rejection_drafter,
    toy,
)

VOCAB = 8
TARGET = toy(VOCAB, seed=11)
DRAFT = near(TARGET, seed=12)
NUM_SEEDS = 50_000


def chains(*here: str) -> list[Any]:
    """All chains; those not named run with `make test-models`."""
    return [c if c in here else pytest.param(c, marks=pytest.mark.large) for c in CHAINS]


def test_the_tail_of_chi_square() -> None:
    """0.1 % points of tables."""
    for degrees, point in {1: 10.828, 2: 13.816, 7: 24.322, 10: 29.588, 63: 103.442}.items():
        assert chi_square_tail(point, degrees) == pytest.approx(0.001, rel=2e-3)


@pytest.mark.parametrize("chain", chains("plain", "top_p"))
def test_rejection_with_a_stochastic_draft(chain: str) -> None:
    params = CHAINS[chain]
    played = play(rejection, rejection_drafter(DRAFT), TARGET, params, NUM_SEEDS)
    assert p_value(Counter(played.texts), law(TARGET, params, 2)) > 0.001
    q, p = next_law(TARGET, params, ()), next_law(DRAFT, params, ())
    alpha = sum(min(q[i], p.get(i, 0.0)) for i in q)
    error = math.sqrt(alpha * (1 - alpha) / played.num_tested)
    assert played.num_tested == NUM_SEEDS
    assert abs(played.num_accepted / played.num_tested - alpha) < 4 * error
    assert 0.2 < alpha < 0.98


@pytest.mark.parametrize("chain", chains("all"))
def test_rejection_with_a_draft_without_chance(chain: str) -> None:
    """As n-grams draft: p is all mass on one token, and α is its q."""
    params = CHAINS[chain]
    choose = guess(TARGET)
    played = play(rejection, certain_drafter(choose), TARGET, params, NUM_SEEDS)
    assert p_value(Counter(played.texts), law(TARGET, params, 2)) > 0.001
    alpha = next_law(TARGET, params, ())[choose(())]
    error = math.sqrt(alpha * (1 - alpha) / played.num_tested)
    assert abs(played.num_accepted / played.num_tested - alpha) < 4 * error


@pytest.mark.parametrize("chain", chains("all"))
def test_coupled_with_a_stochastic_draft(chain: str) -> None:
    """The target's law, the very texts of plain decoding, and the acceptance of the joint law."""
    params = CHAINS[chain]
    played = play(coupled, coupled_drafter(DRAFT), TARGET, params, NUM_SEEDS)
    assert p_value(Counter(played.texts), law(TARGET, params, 2)) > 0.001
    plain = play(coupled, certain_drafter(guess(TARGET)), TARGET, params, NUM_SEEDS, max_drafts=1)
    assert played.texts == plain.texts
    q, p = next_law(TARGET, params, ()), next_law(DRAFT, params, ())
    alpha = coupled_acceptance(q, p)
    error = math.sqrt(alpha * (1 - alpha) / played.num_tested)
    assert abs(played.num_accepted / played.num_tested - alpha) < 4 * error


WRONG = {
    "accepts always": (accepts_always, rejection_drafter(DRAFT), "plain"),
    "accepts always, certain draft": (accepts_always, certain_drafter(guess(TARGET)), "plain"),
    "residual not subtracted": (does_not_subtract, rejection_drafter(DRAFT), "plain"),
    "one stream for draft and acceptance": (
        accepts_by_the_drafts_noise, rejection_drafter(DRAFT), "plain",
    ),
    "p before top_p": (rejection, drafter_before_top_p(DRAFT, CHAINS["top_p"]), "top_p"),
    "gamma after the sample": (rejection, drafter_that_looks(DRAFT, 0.15), "plain"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_are_caught(wrong: str) -> None:
    """The same test, with 20,000 seeds only."""
    rule, draft, chain = WRONG[wrong]
    played = play(rule, draft, TARGET, CHAINS[chain], 20_000)
    assert p_value(Counter(played.texts), law(TARGET, CHAINS[chain], 2)) < 1e-6
