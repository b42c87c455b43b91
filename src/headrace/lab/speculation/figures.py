"""What the runs say: α, c, v, speed-ups with intervals, the formula, and the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean, median
from typing import Any

from headrace.lab.lab import Lab
from headrace.lab.plots import error_bars, style
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

_OPEN = "may do either"


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
        """Speed over plain decoding of the same prompt, over the prompts."""
        return median_interval(self._gains(name, gamma))

    def _gains(self, name: str, gamma: int) -> list[float]:
        runs = self.runs[name, gamma]
        return [run.tok_per_s * s for run, s in zip(runs, self.plain_s, strict=True)]

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
        return median_interval(self._rounds(WRONG, gamma)).value

    def _rounds(self, name: str, gamma: int) -> list[float]:
        """A step of γ + 1 rows with its drafting, in plain steps, prompt by prompt."""
        runs = self.runs[name, gamma]
        return [r.seconds / r.num_rounds / s for r, s in zip(runs, self.plain_s, strict=True)]

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
        found = [
            (whole - self.v(gamma)) / gamma
            for gamma in self.gammas
            for whole in self._rounds(EARLY_EXIT, gamma)
        ]
        return max(median(found), 0.0)

    def c_interval(self) -> Interval:
        """A step of the draft model by itself, in plain steps."""
        return median_interval(self._alone())

    def _alone(self) -> list[float]:
        runs = self.runs["draft alone", 0]
        return [1 / run.tok_per_s / s for run, s in zip(runs, self.plain_s, strict=True)]

    def formula(self, name: str, gamma: int) -> float:
        """Of all prompts together."""
        return speed_up(self.alpha(name, gamma).value, gamma, self.c(name), self.v(gamma))

    def measured(self) -> dict[str, Interval]:
        """By key of the predictions."""
        found = {}
        for gamma in self.gammas:
            found[f"always γ{gamma}"] = self.gain(REPLAY, gamma)
            found[f"never γ{gamma}"] = self.gain(WRONG, gamma)
        found["c"] = self.c_interval()
        found["formula"] = median_interval(self._over_formula())
        found["noise"] = self._noise()
        return found

    def _over_formula(self) -> list[float]:
        """Measured ÷ formula, prompt by prompt: the geometric mean over γ and the drafters whose c
        and v do not come from their own runs, which would make any formula fit."""
        logs = []
        for name in (NOISED, DRAFT, REPLAY):
            for gamma in self.gammas:
                gains, vs = self._gains(name, gamma), self._rounds(WRONG, gamma)
                cs = [0.0] * len(gains) if name == REPLAY else self._alone()
                alphas = [r.num_accepted / max(r.num_tested, 1) for r in self.runs[name, gamma]]
                logs.append(
                    [
                        log(gain / speed_up(alpha, gamma, c, v))
                        for gain, alpha, c, v in zip(gains, alphas, cs, vs, strict=True)
                    ]
                )
        return [exp(fmean(of_prompt)) for of_prompt in zip(*logs, strict=True)]

    def _noise(self) -> Interval:
        """Ratio of two shares. Noise is drawn anew for every γ, so all of its tests count; without
        it other γ test the same guesses again, so only those of the largest do."""
        runs = [run for gamma in self.gammas for run in self.runs[NOISED, gamma]]
        noised = share_interval(sum(r.num_accepted for r in runs), sum(r.num_tested for r in runs))
        return noised.over(self.alpha(DRAFT, self.gammas[-1]))

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
            f"{len(self.plain_s)} prompts; low, high of speeds are over them: "
            f"{self.gain(WRONG, self.gammas[0]).what}. Speed-up: of plain decoding of the same "
            "prompt, so not the quotient of two tok/s. α: accepted ÷ tested of all prompts, "
            "Wilson's 95 % interval, as if tests were independent. c, v: in plain steps. The "
            "n-gram drafter guesses only where the text repeats; the formula has guesses in every "
            "round, so it does not apply. v is that of “never right”, c of the early exit is taken "
            "from its own rounds, so that for these two the formula agrees by itself.",
        )  # fmt: skip

    def conclude(self, findings: Findings) -> None:
        """Sentences about what pays: of every γ, since the best of several, judged by its own
        interval, would look better than it is."""
        for name in self.names:
            gains = {gamma: self.gain(name, gamma) for gamma in self.gammas}
            said: dict[str, list[str]] = {}
            for gamma, gain in gains.items():
                said.setdefault(_effect(gain), []).append(str(gamma))
            words = "; ".join(f"{word} at γ = {', '.join(at)}" for word, at in said.items())
            shown = ", ".join(f"{gain:.2f}" for gain in gains.values())
            findings.conclude(
                f"{name}: {words}. Speed over plain decoding at γ = "
                f"{', '.join(map(str, self.gammas))}: {shown}.",
                list(said) != [_OPEN],
            )


def _effect(gain: Interval) -> str:
    return "pays" if gain.low > 1 else "slows down" if gain.high < 1 else _OPEN


def speed_up(alpha: float, gamma: int, c: float, v: float) -> float:
    """(1 − α^(γ+1)) ÷ ((1 − α)(γc + v)), also at α = 1."""
    return sum(alpha**k for k in range(gamma + 1)) / (gamma * c + v)


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
                yerr=error_bars(found),
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
                yerr=error_bars(rates), **look,
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
