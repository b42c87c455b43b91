"""The controller against simulated texts and machines: what it chooses is as good as what is best
in hindsight, within the 3 % that learning costs; and it gives up, and finds back."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engine.speculation.account import Round, SpeculationAccount
from headrace.engine.speculation.adaptive import AdaptiveController
from headrace.engine.speculation.controller import FixedController, StepCost
from headrace.engine.speculation.costs import CostCurve
from headrace.engine.speculation.drafter import NUM_GRADES, Draft
from headrace.engine.speculation.gamma import StepTimes, best_plan, plan_of

PLAIN_S = 0.02


def knee(rows: float) -> float:
    """v of a machine that reads weights while it computes few rows."""
    return float((1 + (0.105 * rows) ** 3) ** (1 / 3))


def line(rows: float) -> float:
    return 1 + 0.12 * (rows - 1)


def stairs(rows: float) -> float:
    return 1 + 0.12 * ((rows - 1) // 4 * 4)


def _ask(request_id: int, limit: int) -> Any:
    return SimpleNamespace(
        generation=SimpleNamespace(sequence=SimpleNamespace(order=(request_id, 0))), limit=limit
    )


@dataclass
class World:
    """α by how many tokens a request has, cost of a draft by simulated seconds so far, v. Times
    waver by 5 %, and one step in fifty takes three times as long; is_rough: and for some steps in a
    row, three times in ten, all take 1.4 times as long."""

    alpha: Callable[[int], float]
    cost: Callable[[float], float]
    v: Callable[[float], float] = knee
    most: int = 8
    is_free: bool = False
    num_running: int = 1
    is_rough: bool = False
    seconds: float = 0.0  # without noise
    counts: list[int] = field(default_factory=list)
    account: SpeculationAccount = field(default_factory=SpeculationAccount)

    def run(self, controller: Any, num_tokens: int, seed: int, request_id: int = 0) -> float:
        """Seconds per token, without noise."""
        rng = random.Random(seed)
        start, done, slow = self.seconds, 0, 1.0
        while done < num_tokens:
            count = self._count(controller, request_id)
            accepted = 0
            while accepted < count and rng.random() < self.alpha(done):
                accepted += 1
            step = PLAIN_S * self.v(self.num_running + count)
            draft = PLAIN_S * self.cost(self.seconds) * count
            self.seconds += step + draft
            self.counts.append(count)
            done += accepted + 1
            if self.is_rough and rng.random() < 0.05:
                slow = 1.4 if rng.random() < 0.3 else 1.0
            noise = [
                slow * max(0.8, rng.gauss(1, 0.05)) * (3 if rng.random() < 0.02 else 1)
                for _ in "ab"
            ]
            rounds = []
            if count:
                tested = min(accepted + 1, count)
                self.account.add(count, tested, accepted)
                rounds = [Round(request_id, 0, self.account, count, tested, accepted, accepted + 1)]
            else:
                self.account.num_plain_rounds += 1
            rows = self.num_running + count
            controller.observe(
                rounds,
                StepCost(rows, self.num_running, count, True, step * noise[0], draft * noise[1]),
            )
        controller.forget(request_id)
        return (self.seconds - start) / done

    def _count(self, controller: Any, request_id: int) -> int:
        asks = [_ask(request_id, self.most)]
        (count,) = controller.num_drafts(asks, self.num_running)
        if not self.is_free:
            return int(count)
        draft = Draft([0] * count, None, [0] * count)
        controller.cut(asks, [draft])
        return len(draft.tokens)


def adaptive(world: World) -> AdaptiveController:
    return AdaptiveController([0.7] * NUM_GRADES, world.most, is_free=world.is_free)


def _regret(make: Callable[[], World], num_tokens: int, seeds: int = 3) -> float:
    """Time of the adaptive controller over that of the best fixed γ, minus 1."""

    def mean(run: Callable[[World, int], float]) -> float:
        return statistics.mean(run(make(), seed) for seed in range(seeds))

    most = make().most
    fixed = {
        n: mean(lambda world, seed, n=n: world.run(FixedController(n), num_tokens, seed))  # type: ignore[misc]
        for n in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
        if n <= most
    }
    return mean(lambda w, seed: w.run(adaptive(w), num_tokens, seed)) / min(fixed.values()) - 1


@pytest.mark.parametrize("v", [knee, line])
@pytest.mark.parametrize("cost", [0.0, 0.25, 0.45])
def test_no_fixed_number_is_much_better(v: Any, cost: float) -> None:
    most, is_free = (24, True) if cost == 0 else (8, False)
    regrets = [
        _regret(lambda a=alpha: World(lambda _: a, lambda _: cost, v, most, is_free), 2000)  # type: ignore[misc]
        for alpha in (0.05, 0.3, 0.6, 0.8, 0.95)
    ]
    assert max(regrets) < 0.05
    assert statistics.mean(regrets) < 0.03


@pytest.mark.parametrize("cost", [0.0, 0.4])
def test_nor_on_a_rough_machine(cost: float) -> None:
    most, is_free = (24, True) if cost == 0 else (8, False)
    regrets = [
        _regret(
            lambda a=alpha: World(lambda _: a, lambda _: cost, knee, most, is_free, 1, True),  # type: ignore[misc]
            2000,
        )
        for alpha in (0.3, 0.8)
    ]
    assert statistics.mean(regrets) < 0.03


def test_stairs_are_found() -> None:
    """A step of 5 … 8 rows costs the same: 7 drafts, not 5."""
    world = World(lambda _: 0.9, lambda _: 0.0, stairs, 16, is_free=True)
    world.run(adaptive(world), 6000, 0)
    counts = world.counts[len(world.counts) // 2 :]
    assert statistics.mode(counts) in {3, 7, 11}


def test_random_text_costs_next_to_nothing() -> None:
    world = World(lambda _: 0.02, lambda _: 0.4)
    controller = adaptive(world)
    assert world.run(controller, 400, 1) < 1.03 * PLAIN_S * knee(1)
    before = len(world.counts)
    assert world.run(controller, 400, 2, request_id=1) < 1.012 * PLAIN_S * knee(1)
    assert world.account.measured_gain is not None
    places = [i for i, count in enumerate(world.counts[before:]) if count]
    assert len(places) <= 4


def test_probes_become_ever_rarer() -> None:
    world = World(lambda _: 0.0, lambda _: 0.0, line, is_free=True)
    world.run(adaptive(world), 3000, 0)
    places = [i for i, count in enumerate(world.counts) if count]
    gaps = [b - a for a, b in itertools.pairwise(places) if b - a > 8]
    assert gaps == sorted(gaps)
    assert gaps[0] == 16
    assert gaps[-1] == 256
    assert len(places) < 40


@pytest.mark.parametrize(("before", "after", "is_free"), [(0.05, 0.95, True), (0.9, 0.1, False)])
def test_a_text_that_changes_is_noticed(before: float, after: float, is_free: bool) -> None:
    world = World(
        lambda done: before if done < 500 else after,
        lambda _: 0.0 if is_free else 0.3,
        is_free=is_free,
    )
    controller = adaptive(world)
    took = world.run(controller, 2000, 0)
    halves = [
        World(lambda _, a=a: a, world.cost, is_free=is_free).run(  # type: ignore[misc]
            FixedController(0 if a < 0.5 else 6), 2000, 0
        )
        for a in (before, after)
    ]
    assert took < 1.12 * (halves[0] + 3 * halves[1]) / 4


def test_a_machine_that_changes_is_followed() -> None:
    """Drafting becomes four times as expensive: no more drafts; and cheap again."""
    world = World(lambda _: 0.7, lambda seconds: 1.2 if 20 < seconds < 60 else 0.2)
    controller = adaptive(world)
    shares = []
    for request_id in range(12):
        world.counts.clear()
        start = world.seconds
        world.run(controller, 500, request_id, request_id)
        shares.append((start, statistics.mean(map(bool, world.counts))))
    assert all(share > 0.9 for start, share in shares if start < 12)
    assert all(share < 0.1 for start, share in shares if 30 < start < 52)


def test_neighbours_make_rows_dear() -> None:
    """Beside 31 others a draft costs a row of arithmetic, and gains a token in 33."""
    means = []
    for num_running in (1, 32):
        world = World(lambda _: 0.75, lambda _: 0.0, line, 16, True, num_running)
        world.run(adaptive(world), 3000, 0)
        means.append(statistics.mean(world.counts[100:]))
    assert means[0] > 2
    assert means[1] < means[0]


def test_gains_are_what_happened() -> None:
    world = World(lambda _: 0.9, lambda _: 0.2, line)
    took = world.run(adaptive(world), 4000, 0)
    gain = PLAIN_S / took
    assert world.account.measured_gain == pytest.approx(gain, rel=0.12)
    assert world.account.predicted_gain == pytest.approx(gain, rel=0.15)


# ---- the parts ----------------------------------------------------------------------------------


def test_one_sequence_gets_the_formula_s_optimum() -> None:
    rng = random.Random(0)
    for _ in range(300):
        alpha, cost, slope = rng.uniform(0.05, 0.98), rng.uniform(0, 0.6), rng.uniform(0, 0.3)
        times = StepTimes(
            lambda rows, s=slope: 1 + s * (rows - 1),  # type: ignore[misc]
            lambda n, c=cost: n * c,  # type: ignore[misc]
        )
        plan = best_plan([[alpha**k for k in range(1, 13)]], 1, times)

        def speed(n: int, a: float = alpha, c: float = cost, s: float = slope) -> float:
            return (1 - a ** (n + 1)) / ((1 - a) * (n * c + 1 + s * n))

        best = max(map(speed, range(13)))
        assert speed(plan.counts[0]) == pytest.approx(best, rel=0.0101)
        assert plan.tokens / plan.seconds == pytest.approx(speed(plan.counts[0]))


def test_sequences_share_a_step_in_the_best_way() -> None:
    """Every combination of counts, looked at one by one, is no better."""
    rng = random.Random(1)
    for _ in range(40):
        chances = [
            list(itertools.accumulate([rng.uniform(0.2, 1) for _ in range(4)], lambda a, b: a * b))
            for _ in range(3)
        ]
        table = list(itertools.accumulate(rng.choice((0.0, 0.1, 0.4)) for _ in range(20)))
        times = StepTimes(lambda rows, t=table: 1 + t[rows], lambda _: 0.0)  # type: ignore[misc]
        plan = best_plan(chances, 4, times)

        def rate(counts: tuple[int, ...], c: Any = chances, t: Any = times) -> float:
            tokens = 4 + sum(sum(row[:n]) for row, n in zip(c, counts, strict=True))
            return tokens / float(t.step(4 + sum(counts)))

        best = max(map(rate, itertools.product(range(5), repeat=3)))
        assert rate(tuple(plan.counts)) == pytest.approx(plan.tokens / plan.seconds)
        assert rate(tuple(plan.counts)) >= best / 1.0101
        for total in range(13):
            assert sum(plan_of(total, chances, 4, times).counts) == min(total, 12)


def test_costs_ignore_hiccups_and_the_pace() -> None:
    rng = random.Random(2)
    curve = CostCurve(knee)
    for number in range(600):
        rows = rng.choice((1, 2, 3, 5, 9))
        pace = 0.02 if number < 300 else 0.035  # the machine slows down
        hiccup = rng.uniform(2, 5) if rng.random() < 0.1 else 1
        curve.record(rows, pace * line(rows) * rng.gauss(1, 0.03) * hiccup)
    for rows in (2, 3, 5, 9):
        assert curve.shape(rows) / curve.shape(1) == pytest.approx(line(rows), rel=0.08)
    assert curve.seconds(1) == pytest.approx(0.035, rel=0.1)
    assert curve.seconds(7) == pytest.approx(0.035 * line(7), rel=0.2)  # never seen
    assert curve.seconds(100_000) > curve.seconds(64)
