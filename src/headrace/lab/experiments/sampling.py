"""sampling: what temperature and the thinning stages do to real distributions, and to texts."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from headrace.lab.experiment import Experiment
from headrace.lab.findings_page import number
from headrace.lab.lab import Lab
from headrace.lab.sampling.checks import (
    draws_follow_the_law,
    neighbours_change_nothing,
    smallest_temperature_is_greedy,
    stages_are_the_definition,
)
from headrace.lab.sampling.definition import cross_entropy, entropy_at, repeated
from headrace.lab.sampling.distributions import measure_entropy, measure_sets
from headrace.lab.sampling.inputs import passages_of, rows_along, rows_behind_prompts
from headrace.lab.sampling.texts import draw_breaking, grid_of, measure_texts, perplexity_of
from headrace.lab.statistics import mean_interval
from headrace.lab.values import Check, Findings, Kind, Prediction
from headrace.verify.faults import NO_FAULT


class Sampling(Experiment):
    """See docs/lab/sampling.md."""

    name = "sampling"
    title = "Temperature, candidate sets, and how a text breaks"
    question = (
        "What do temperature, top-k, top-p and min-p do to the distribution of the next token, and "
        "at what settings does the text itself break?"
    )
    claim = (
        "Entropy grows with temperature; greedy text repeats itself and hot text drifts; top-p and "
        "min-p adapt the number of candidates to the position, top-k does not (Holtzman et al., "
        "“The Curious Case of Neural Text Degeneration”, 2020)."
    )
    quick_s = 20.0
    full_s = 240.0
    faults = ("noise-key", "row-swap")
    try_this = (
        "`headrace lab run sampling --quick --model qwen2.5-coder-0.5b`: a larger vocabulary, and "
        "a model tuned on code.",
        "`--seed 2`: other draws. Which conclusions survive?",
        "`headrace generate MODEL -p … --temperature 2 --min-p 0.1`: heat without the tail.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        passages, rows = passages_of(lab), rows_behind_prompts(lab)
        at_one = perplexity_of(
            mean_interval([fmean(entropy_at(z, 1.0) for z in own) for own in rows])
        )
        hot = perplexity_of(
            mean_interval([fmean(cross_entropy(z, 2.0) for z in own) for own in rows])
        )
        logits = f"logits at {sum(map(len, rows))} places of the real text behind the same prompts"
        return [
            Prediction(
                "slope", "slope of the entropy at T = 1, over Var(z) ÷ T³", 1.0, "",
                "dH/dT = Var(z) ÷ T³ exactly", tolerance=1.01,
            ),
            Prediction(
                "deficit", "how far entropy at T = 2 stays below ln V, over σ² ÷ 2T²", 1.0, "×",
                "as if logits were normal; σ: of all logits of a position, position by position",
            ),
            Prediction(
                "perplexity 1", "perplexity, to the model itself, of its text at T = 1",
                at_one.value, "",
                f"exp of the mean entropy of {logits}, uncertain by itself: {number(at_one.low)} … "
                f"{number(at_one.high)}", tolerance=1.5,
            ),
            Prediction(
                "perplexity 2", "the same at T = 2", hot.value, "",
                f"exp of the mean cross-entropy between T = 2 and T = 1, {logits}, uncertain by "
                f"itself: {number(hot.low)} … {number(hot.high)}", tolerance=1.5,
            ),
            Prediction(
                "repeated 0", "share of 4-grams of greedy text that it has said before", 0.5, "",
                "what is taught: greedy text ends in a loop; half of it is our mark",
                Kind.AT_LEAST, tolerance=1.0,
            ),
            Prediction(
                "repeated 1", "the same at T = 1", fmean(map(repeated, passages)), "",
                "as much as so many tokens of the real text behind the same prompts, and at most "
                "0.05 more", Kind.AT_MOST, tolerance=1.0, slack=0.05,
            ),
        ]  # fmt: skip

    def check(self, lab: Lab) -> list[Check]:
        rows = rows_along(lab)[::4]
        num_ids = lab.subject(fault=NO_FAULT).num_ids
        return [
            stages_are_the_definition(rows, num_ids),
            *draws_follow_the_law(rows[:3], num_ids, lab.seed),
            smallest_temperature_is_greedy(rows, num_ids),
            neighbours_change_nothing(lab.subject()),
        ]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        findings = Findings()
        rows = rows_along(lab)
        with lab.stage("distributions", 0.3):
            measure_entropy(lab, rows, findings)
            measure_sets(lab, rows, findings)
        with lab.stage("texts", 0.6):
            texts = measure_texts(lab, findings)
            draw_breaking(lab, texts, predicted)
        with lab.stage("grid", 0.1):
            findings.tables.append(grid_of(lab))
        return findings
