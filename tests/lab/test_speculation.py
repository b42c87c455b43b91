"""The experiment on speculation: its drafters, its χ², its formula."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from speculation import toy_rounds

from headrace.engine.speculation.drafter import Ask, Draft
from headrace.lab.speculation.bench import DRAFT, NOISED, PLAIN, REPLAY, WRONG, Run
from headrace.lab.speculation.drafters import Noised, Replay, Switch, Wrong
from headrace.lab.speculation.figures import Figures
from headrace.lab.speculation.law import goodness
from headrace.lab.statistics import chi_square_p


def ask(tokens: list[int], limit: int) -> Ask:
    sequence = SimpleNamespace(tokens=tokens)
    return Ask(cast(Any, SimpleNamespace(sequence=sequence)), limit)


def test_the_extremes_know_the_text() -> None:
    for drafter in (Wrong(10), Replay(10)):
        drafter.num_prompt, drafter.text = 2, [5, 6, 9]
        (draft,) = drafter.propose([ask([1, 1, 5], 2)])
        assert draft.tokens == ([7, 7] if type(drafter) is Wrong else [6, 9])
    (end,) = drafter.propose([ask([1, 1, 5, 6, 9], 2)])
    assert end.tokens == []


def test_noise_spoils_the_share_that_it_says() -> None:
    class Same:
        def propose(self, asks: Any) -> list[Draft]:
            return [Draft([3] * a.limit) for a in asks]

        def kept(self, generation: Any, num_kept: int) -> None: ...

        def forget(self, generation: Any) -> None: ...

    (draft,) = Switch(Noised(Same(), 0.3, 1_000_000, seed=1)).propose([ask([1], 10_000)])
    spoilt = sum(token != 3 for token in draft.tokens) / 10_000
    assert abs(spoilt - 0.3) < 4 * math.sqrt(0.21 / 10_000)


@pytest.mark.parametrize(
    ("statistic", "degrees", "p"),
    [(3.841, 1, 0.05), (11.070, 5, 0.05), (29.588, 10, 0.001), (112.329, 80, 0.01),
     (0.0, 3, 1.0), (1.386294, 2, 0.5)],
)  # fmt: skip
def test_chi_square_is_that_of_the_tables(statistic: float, degrees: int, p: float) -> None:
    """NIST's table of critical values; 2 degrees are an exponential law."""
    assert chi_square_p(statistic, degrees) == pytest.approx(p, rel=0.01)


def test_chi_square_is_that_of_the_finite_sums() -> None:
    """Two ways to the same tail: the incomplete gamma function, and the sums of the tests' own."""
    for degrees in range(1, 60):
        for x in (0.1, degrees / 2, float(degrees), 2.0 * degrees, 5.0 * degrees + 20):
            assert chi_square_p(x, degrees) == pytest.approx(
                toy_rounds.chi_square_tail(x, degrees), rel=1e-9
            )


def test_chi_square_of_right_draws_is_uniform_and_of_wrong_ones_small() -> None:
    random = np.random.default_rng(2)
    q = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    right = [goodness(q, random.choice(5, 2000, p=q)) for _ in range(400)]
    assert 0.4 < np.mean(right) < 0.6
    assert 0.02 <= np.mean(np.array(right) < 0.05) <= 0.09
    wrong = np.array([0.4, 0.2, 0.3, 0.06, 0.04])
    assert goodness(q, random.choice(5, 2000, p=wrong)) < 1e-6


def runs(tok_per_s: float, rounds: int, tested: int, accepted: int) -> list[Run]:
    return [Run([0] * 65, 64 / tok_per_s, rounds, tested, accepted)] * 3


def test_figures_worked_out_by_hand() -> None:
    """Plain 10 tok/s. γ = 2: never right 64 rounds at 8 tok/s, so v = 10/8 = 1.25; the draft model
    alone 40 tok/s, so c = 0.25; 90 of 100 stand, so 1 + 0.9 + 0.81 tokens in 0.5 + 1.25 steps."""
    found = Figures(
        {
            (PLAIN, 0): runs(10, 64, 0, 0),
            (WRONG, 2): runs(8, 64, 64, 0),
            (REPLAY, 2): runs(24, 22, 42, 42),
            (DRAFT, 2): runs(15, 25, 100, 90),
            (NOISED, 2): runs(9, 40, 100, 63),
            ("draft alone", 0): runs(40, 64, 0, 0),
        },
        (2,),
        [WRONG, NOISED, DRAFT, REPLAY],
    )
    assert found.v(2) == pytest.approx(1.25)
    assert found.c(DRAFT) == pytest.approx(0.25)
    assert found.alpha(DRAFT, 2).value == pytest.approx(0.9)
    assert found.formula(DRAFT, 2) == pytest.approx(2.71 / 1.75)
    assert found.formula(REPLAY, 2) == pytest.approx(3 / 1.25)
    assert found.gain(DRAFT, 2).value == pytest.approx(1.5)
    measured = found.measured()
    assert measured["noise"].value == pytest.approx(0.7)
    assert measured["never γ2"].value == pytest.approx(0.8)
    assert measured["c"].value == pytest.approx(0.25)
    table = found.table()
    rates = {row[0]: row[table.columns.index("tok/s")] for row in table.rows}
    assert rates == pytest.approx({PLAIN: 10, WRONG: 8, NOISED: 9, DRAFT: 15, REPLAY: 24})
    ratios = [9 / 10 / (2.0269 / 1.75), 1.5 / (2.71 / 1.75), 2.4 / (3 / 1.25)]
    assert measured["formula"].value == pytest.approx(math.prod(ratios) ** (1 / 3))
