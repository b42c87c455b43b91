"""speculation: what guessing ahead gains, over how far and how well one guesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.engine.model import OpenModel
from headrace.engine.params import SamplingParams
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.speculation import figures as pictures
from headrace.lab.speculation import law as laws
from headrace.lab.speculation.bench import (
    DRAFTS,
    NOISE,
    PLAIN,
    QUANTIZED,
    Bench,
    Run,
    draft_model_of,
)
from headrace.lab.speculation.figures import Figures
from headrace.lab.speculation.law import DRAWS, draw_law
from headrace.lab.values import Check, Findings, Prediction
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk

#: Positions of the steps whose bounds predict c and v.
_CONTEXT = 192


class Speculation(Experiment):
    """See docs/lab/speculation.md."""

    name = "speculation"
    title = "Guessing ahead"
    question = "When does testing several guessed tokens in one step pay, and is the text the same?"
    claim = (
        "The speed-up is (1 − α^(γ+1)) ÷ ((1 − α)(γc + v)): α how often a tested guess stands, c "
        "the cost of a guess, v that of a step of γ + 1 rows (Leviathan, Kalman and Matias 2023, "
        "where v = 1). The distribution of the text is the target's own, whatever the guesses."
    )
    default_model = "qwen2.5-coder-1.5b"
    quick_s = 150.0
    full_s = 1000.0
    faults = ("kept-draft",)
    try_this = (
        "`headrace lab run speculation --quick --model smollm2-135m`: a small target, whose own "
        "4-bit copy guesses: c is near 1. Does any γ pay?",
        "`--inject kept-draft`: the key and value of a rejected guess stay, and the texts differ.",
        "`python tools/bench_speculation.py draft` measures the same at length, with the γ that "
        "Headrace chooses by itself.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        """c and v from the two programs' costs; what a perfect and a hopeless drafter then give."""
        rates = lab.rates()
        target = _costs(lab, lab.open(), rates)
        one = _bound_s(target, 1, rates)
        predictions = []
        for gamma in _gammas(lab):
            v = _bound_s(target, gamma + 1, rates) / one
            how = f"v = {v:.2f}: the bound of a step of {gamma + 1} rows over that of one row"
            predictions.append(
                Prediction(f"always γ{gamma}", f"speed-up at γ = {gamma} when every guess stands",
                           (gamma + 1) / v, "×", f"(γ + 1) ÷ v, {how}", tolerance=1.35)
            )  # fmt: skip
            predictions.append(
                Prediction(f"never γ{gamma}", f"speed-up at γ = {gamma} when no guess stands",
                           1 / v, "×", f"1 ÷ v, {how}", tolerance=1.35)
            )  # fmt: skip
        draft = _costs(lab, draft_model_of(lab), rates)
        predictions.append(
            Prediction("c", "cost of one guess of the draft model, in steps of the target",
                       _bound_s(draft, 1, rates) / one, "steps", "ratio of the two bounds",
                       tolerance=1.5)
        )  # fmt: skip
        predictions.append(
            Prediction("formula", "measured speed-up over the formula with the measured α, c and v",
                       1.0, "×", "prompt by prompt, the geometric mean over all γ of drafters "
                       "whose c and v other runs tell: draft model, noised too, always right",
                       tolerance=1.15)
        )  # fmt: skip
        predictions.append(
            Prediction("noise", f"α with {NOISE:.0%} of the guesses spoilt, over α without",
                       1 - NOISE, "×", "a spoilt guess stands by chance only", tolerance=1.2)
        )  # fmt: skip
        return predictions

    def check(self, lab: Lab) -> list[Check]:
        bench = _bench(lab)
        params = _greedy(24)
        # Hot, so that also the drafter that knows the greedy text guesses wrong.
        seeded = params.replace(temperature=1.5, seed=lab.seed)
        plain = [bench.run(PLAIN, 0, p).tokens for p in (params, seeded)]
        bench.remember(plain[0])
        checks = []
        with lab.stage("texts with and without guesses", 0.7):
            for name in bench.drafters:
                runs = [bench.run(name, 3, p) for p in (params, seeded)]
                same = plain == [run.tokens for run in runs]
                tested = sum(run.num_tested for run in runs)
                told = (
                    f"24 tokens greedy, 24 tokens seeded, γ = 3: {tested} guesses tested, "
                    f"{sum(run.num_accepted for run in runs)} stood"
                )
                # Equal because nobody guessed would prove nothing.
                checks.append(Check(f"plain = {name}", same and tested > 0, told))
        with lab.stage("the law of the drawn tokens", 0.3):
            law = draw_law(bench, lab.open().tokenizer, lab.seed)
        checks.append(
            Check(
                "the rejection rule draws the target's distribution",
                law.p_rule > 1e-3,
                f"χ² of {DRAWS:,} draws: p = {law.p_rule:.3f}",
            )
        )
        checks.append(
            Check(
                "the same test refuses the draft model's distribution",
                law.p_draft < 1e-6,
                f"p {'=' if law.p_draft else '<'} {law.p_draft or 1e-300:.0e}",
            )
        )
        lab.kept["law"] = law
        return checks

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        bench, gammas = _bench(lab), _gammas(lab)
        # One less than these divides by 2, 3 and 5: with γ = 1, 2, 4 the last round is a whole one.
        params = _greedy(31 if lab.quick else 121)
        prompts = bench.prompts[:6] if lab.quick else bench.prompts
        runs: dict[tuple[str, int], list[Run]] = {}
        ways = [(name, gamma) for name in bench.drafters for gamma in gammas]
        for number, bench.prompt in enumerate(prompts):
            first = bench.run(PLAIN, 0, params)  # warms up
            bench.remember(first.tokens)
            before = bench.run(PLAIN, 0, params)
            for place, (name, gamma) in enumerate(ways):
                lab.tell(
                    f"prompt {number + 1} of {len(prompts)}: {name}, γ = {gamma}",
                    (number + place / len(ways)) / len(prompts),
                )
                runs.setdefault((name, gamma), []).append(bench.run(name, gamma, params))
            runs.setdefault(("draft alone", 0), []).append(bench.draft_alone(params))
            after = bench.run(PLAIN, 0, params)
            both = replace(before, seconds=(before.seconds + after.seconds) / 2)
            runs.setdefault((PLAIN, 0), []).append(both)
        figures = Figures(runs, gammas, list(bench.drafters))
        findings = Findings(figures.measured())
        findings.tables.append(figures.table())
        figures.conclude(findings)
        pictures.draw_figure(lab, figures)
        laws.draw_figure(lab, lab.kept["law"])
        findings.notes.append(
            f"Target {lab.open().name}, draft model {draft_model_of(lab).name}"
            f"{' in ' + QUANTIZED if lab.open().name not in DRAFTS else ''}; "
            f"{params.max_tokens} tokens behind each of {len(prompts)} prompts, greedy, all ways "
            "in turns; plain decoding before and after them, and the mean of the two. Times are "
            "those of the decode steps, drafting included. Intervals are over the prompts."
        )
        return findings


def _gammas(lab: Lab) -> tuple[int, ...]:
    return (1, 2, 4) if lab.quick else (1, 2, 3, 4, 6, 8)


def _costs(lab: Lab, model: OpenModel, rates: MachineRates) -> CostModel:
    return lab.costs(model, cache_bytes=rates.llc_bytes)


def _bound_s(costs: CostModel, num_rows: int, rates: MachineRates) -> float:
    step = costs.step([Chunk(num_rows, _CONTEXT + num_rows)], num_logit_rows=num_rows)
    return bound(step, rates).bound_s


def _greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_tokens)


def _bench(lab: Lab) -> Bench:
    """One per run: packing the models takes seconds."""
    if "bench" not in lab.kept:
        lab.kept["bench"] = Bench(lab)
    found: Bench = lab.kept["bench"]
    return found
