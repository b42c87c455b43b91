"""What the runs say: α, c, v, speed-ups with intervals, the formula, and the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.lab.lab import Lab
from headrace.lab.plots import style
from headrace.lab.speculation.bench import (
    DRAFT,
    EARLY_EXIT,
    NGRAM,
    NOISED,
    PLAIN,
    REPLAY,
    WRONG,
    Run,
)
from headrace.lab.statistics import Interval, median_interval, share_interval
from headrace.lab.values import Findings, Table


@dataclass(slots=True)
class Figures:
    """Sums and ratios of all runs."""

    runs: Mapping[tuple[str, int], list[Run]]
    gammas: tuple[int, ...]
    names: list[str]
    plain_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.plain_s = [1 / run.tok_per_s for run in self.runs[PLAIN, 0]]

    def gain(self, name: str, gamma: int) -> Interval:
        """Speed over plain decoding, of pairs of runs."""
        runs = self.runs[name, gamma]
        return median_interval(
            [run.tok_per_s * s for run, s in zip(runs, self.plain_s, strict=True)]
        )

    def rate(self, name: str, gamma: int) -> Interval:
        """Tokens per second of the decode steps, drafting included."""
        return median_interval([run.tok_per_s for run in self.runs[name, gamma]])

    def alpha(self, name: str, gamma: int) -> Interval:
        """Accepted ÷ tested."""
        runs = self.runs[name, gamma]
        tested = sum(run.num_tested for run in runs)
        if not tested:
            return Interval(0.0, 0.0, 1.0, 0, "never tested")
        return share_interval(sum(run.num_accepted for run in runs), tested)

    def v(self, gamma: int) -> float:
        """A step of γ + 1 rows in plain steps: from the drafter that costs nothing and is never
        right."""
        runs = self.runs[WRONG, gamma]
        return median_interval(
            [run.seconds / run.num_rounds / s for run, s in zip(runs, self.plain_s, strict=True)]
        ).value

    def c(self, name: str) -> float:
        """A guess in plain steps: nothing for those that look up."""
        if name in (WRONG, NGRAM, REPLAY):
            return 0.0
        c = self.c_interval().value
        if name == EARLY_EXIT:  # half of the layers, and the whole head
            return self._early_exit_c()
        return c

    def _early_exit_c(self) -> float:
        """From its own rounds: what they take beyond a step of γ + 1 rows."""
        found = []
        for gamma in self.gammas:
            for run, s in zip(self.runs[EARLY_EXIT, gamma], self.plain_s, strict=True):
                found.append((run.seconds / run.num_rounds / s - self.v(gamma)) / gamma)
        return max(median_interval(found).value, 0.0)

    def c_interval(self) -> Interval:
        """A step of the draft model by itself, in plain steps."""
        alone = [1 / run.tok_per_s for run in self.runs["draft alone", 0]]
        return median_interval([a / s for a, s in zip(alone, self.plain_s, strict=True)])

    def formula(self, name: str, gamma: int) -> float:
        """(1 − α^(γ+1)) ÷ ((1 − α)(γc + v))."""
        alpha = self.alpha(name, gamma).value
        tokens = sum(alpha**k for k in range(gamma + 1))
        return tokens / (gamma * self.c(name) + self.v(gamma))

    def measured(self) -> dict[str, Interval]:
        """By key of the predictions."""
        found = {}
        for gamma in self.gammas:
            found[f"always γ{gamma}"] = self.gain(REPLAY, gamma)
            found[f"never γ{gamma}"] = self.gain(WRONG, gamma)
        found["c"] = self.c_interval()
        ratios = [
            self._over_formula(name, gamma)
            for name in self.names
            if name != NGRAM  # it does not guess in every round
            for gamma in self.gammas
        ]
        found["formula"] = max(ratios, key=lambda r: abs(np.log(r.value)))
        found["noise"] = self._noise()
        return found

    def _over_formula(self, name: str, gamma: int) -> Interval:
        gain, formula = self.gain(name, gamma), self.formula(name, gamma)
        return Interval(
            gain.value / formula, gain.low / formula, gain.high / formula, gain.n, gain.what
        )

    def _noise(self) -> Interval:
        """Ratio of two shares: its interval from the ends of theirs."""
        gamma = self.gammas[0]
        noised, clean = (self.alpha(n, gamma) for n in (NOISED, DRAFT))
        return Interval(
            noised.value / clean.value, noised.low / clean.high, noised.high / clean.low,
            noised.n, "ratio of the ends of two Wilson intervals",
        )  # fmt: skip

    def table(self) -> Table:
        """All drafters and γ, below plain decoding."""
        nothing = [None] * 5
        rows: list[list[Any]] = [[PLAIN, 0, *nothing, *self.rate(PLAIN, 0).ends, *nothing[:4]]]
        for name in self.names:
            for gamma in self.gammas:
                gain, alpha = self.gain(name, gamma), self.alpha(name, gamma)
                predicted = None if name == NGRAM else self.formula(name, gamma)
                rows.append(
                    [name, gamma, *alpha.ends, self.c(name), self.v(gamma),
                     *self.rate(name, gamma).ends, *gain.ends, predicted]
                )  # fmt: skip
        return Table(
            "drafters",
            ["drafter", "γ", "α", "α low", "α high", "c", "v", "tok/s", "tok/s low", "tok/s high",
             "speed-up", "low", "high", "by the formula"],
            rows,
            "α: accepted ÷ tested, Wilson's 95 % interval. c, v: in plain steps. Speed-up: of "
            "pairs of runs in turns, so not the quotient of two tok/s. The n-gram drafter guesses "
            "only where the text repeats; the formula has guesses in every round, so it does not "
            "apply. c of the early exit is taken from its own rounds.",
        )  # fmt: skip

    def conclude(self, findings: Findings) -> None:
        """Sentences about what pays: of every γ, since the best of several, judged by its own
        interval, would look better than it is."""
        for name in self.names:
            gains = {gamma: self.gain(name, gamma) for gamma in self.gammas}
            shown = ", ".join(
                f"γ = {gamma}: {gain.value:.2f} × ({gain.low:.2f} … {gain.high:.2f})"
                for gamma, gain in gains.items()
            )
            if all(gain.low > 1 for gain in gains.values()):
                findings.conclude(f"{name} pays at every γ tried ({shown}).")
            elif all(gain.high < 1 for gain in gains.values()):
                findings.conclude(f"{name} slows down at every γ tried ({shown}).")
            else:
                findings.conclude(f"whether {name} pays at every γ tried ({shown}).", False)


def draw_figure(lab: Lab, figures: Figures) -> None:
    """gain.png."""
    caption = (
        "Speed over plain decoding by the number of guessed tokens γ, measured (points, range) and "
        "by the formula with the measured α, c and v (dotted). Right: how often tested guesses "
        "stand."
    )
    alt = "Speed-up and acceptance over gamma for six drafters"
    with lab.figure("gain", caption, alt, columns=2) as (figure, (gains, alphas)):
        for place, name in enumerate(figures.names):
            look = style(place)
            found = [figures.gain(name, gamma) for gamma in figures.gammas]
            gains.errorbar(
                figures.gammas, [f.value for f in found],
                yerr=[[f.value - f.low for f in found], [f.high - f.value for f in found]],
                label=name, **look,
            )  # fmt: skip
            if name != NGRAM:
                gains.plot(
                    figures.gammas, [figures.formula(name, gamma) for gamma in figures.gammas],
                    color=look["color"], linestyle=":", marker="", linewidth=1.2,
                )  # fmt: skip
            rates = [figures.alpha(name, gamma) for gamma in figures.gammas]
            alphas.errorbar(
                figures.gammas, [r.value for r in rates],
                yerr=[[r.value - r.low for r in rates], [r.high - r.value for r in rates]], **look,
            )  # fmt: skip
        gains.axhline(1.0, color="#666666", linewidth=1)
        gains.set_xlabel("γ, tokens guessed per round")
        gains.set_ylabel("speed ÷ plain decoding")
        alphas.set_xlabel("γ")
        alphas.set_ylabel("α = accepted ÷ tested")
        alphas.set_ylim(-0.05, 1.05)
        for axis in (gains, alphas):
            axis.set_xticks(figures.gammas)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
