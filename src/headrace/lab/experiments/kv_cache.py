"""kv-cache: what does keeping keys and values change? Not the logits; the time, and the memory.

Two public paths of the engine answer: `kv_allocator="none"` computes the whole history in every
step, the usual one computes one position and reads the rest from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lab.experiment import Experiment
from headrace.lab.kv_cache.answers import answer_bound_s, answers_of, measure_answers
from headrace.lab.kv_cache.checks import compare
from headrace.lab.kv_cache.memory import measure_memory
from headrace.lab.kv_cache.steps import (
    FIT_FROM,
    PATHS,
    bound_s,
    engines_of,
    lengths_of,
    measure_steps,
    report_steps,
    totals,
)
from headrace.lab.lab import Lab
from headrace.lab.parts.kv_memory import CHECK_VALUES
from headrace.lab.statistics import (
    fit_power,
)
from headrace.lab.values import Check, Findings, Prediction
from headrace.lab.values import Kind as Sense


class KVCache(Experiment):
    name = "kv-cache"
    title = "The KV cache: the same logits, less time, more memory"
    question = "What does it change when keys and values of old positions are kept?"
    claim = (
        "Logits stay the same. A step's time (nearly) stops growing with the history, so an "
        "answer's time grows linearly instead of quadratically: 5-10× faster at 256 + 128 tokens, "
        "20-30× at 1k + 1k. The price is 2 · L · K · D · S · bytes per sequence."
    )
    quick_s, full_s = 105.0, 250.0
    faults = ("cache-position", "rope-offset", "mask-off-by-one", "row-swap")
    try_this = (
        "headrace lab run kv-cache --inject rope-offset: the first token is right, later ones "
        "drift, and the check says at which step",
        "headrace lab run kv-cache --inject row-swap: right at batch 1, wrong at batch 2",
        "headrace lab run kv-cache --model qwen2.5-coder-0.5b: 2 KV heads instead of 3, a larger "
        "model around them",
        "headrace generate MODEL -p … --kv-allocator none --stats: the slow path by hand",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        costs, rates = lab.costs(), lab.rates()
        lengths = lengths_of(lab.open())
        fitted = [s for s in lengths if s >= FIT_FROM]
        steps = {path: [bound_s(costs, rates, path, s) for s in lengths] for path in PATHS}
        longest = lengths[-1]
        found = [
            Prediction(
                "decode_ms",
                f"a cached step at {longest:,} positions",
                1e3 * steps["cached"][-1],
                "ms",
                "bound of the step; nothing can be faster",
                Sense.AT_LEAST,
                tolerance=1.1,
            ),
            Prediction(
                "step_exponent",
                f"growth of an uncached step with the history S ≥ {FIT_FROM}",
                fit_power(fitted, steps["no cache"][-len(fitted) :]).exponent.value,
                "exponent",
                "power law through the bounds of the same steps",
                tolerance=1.0,
                slack=0.15,
            ),
            Prediction(
                "total_exponent",
                f"growth of an uncached answer's time with its length S ≥ {FIT_FROM}",
                fit_power(fitted, totals(lengths, steps["no cache"])[-len(fitted) :])
                .exponent.value,
                "exponent",
                "power law through sums of those bounds",
                tolerance=1.0,
                slack=0.15,
            ),
            Prediction(
                "grown",
                f"time of a cached step at {longest:,} positions ÷ at {lengths[0]:,}",
                steps["cached"][-1] / steps["cached"][0],
                "×",
                "ratio of the bounds: weights and keys and values ÷ read bandwidth",
            ),
        ]  # fmt: skip
        for prompt, output in answers_of(lengths):
            speed_up = answer_bound_s(costs, rates, "no cache", prompt, output) / answer_bound_s(
                costs, rates, "cached", prompt, output
            )
            found.append(
                Prediction(
                    f"speed_up_{prompt}_{output}",
                    f"speed-up of the cache at {prompt} + {output} tokens",
                    speed_up,
                    "×",
                    "bounds of all steps of both paths, summed",
                    tolerance=1.5,
                )
            )
        return found + [
            Prediction(
                f"memory_{shape.kv_heads}",
                f"memory of a written cache, {shape}, {shape.format.value}",
                shape.formula_bytes / 2**20,
                "MiB",
                "2 · L · K · D · S · bytes",
                tolerance=1.01,
            )
            for shape in CHECK_VALUES
        ]

    def check(self, lab: Lab) -> list[Check]:
        try:
            return compare(lab)
        except RuntimeError as error:  # of the path under test: that is a failed check
            return [Check("both paths run", False, str(error))]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        engines = engines_of(lab)
        with lab.stage("steps at growing lengths", 0.4):
            steps = measure_steps(lab, engines, 5 if lab.quick else 9)
        report_steps(lab, steps, found)
        with lab.stage("whole answers", 0.45):
            measure_answers(lab, engines, steps, found)
        with lab.stage("memory", 0.15):
            measure_memory(lab, found)
        return found
