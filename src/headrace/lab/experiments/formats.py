"""formats: what fewer bits per weight buy, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lab.experiment import Experiment
from headrace.lab.formats.checks import round_trips, worked_example
from headrace.lab.formats.findings import conclude, draw, quality_table, speed_table
from headrace.lab.formats.measurement import (
    DEPTH,
    PROMPT,
    STEPS,
    measure_quality,
    measure_speed,
    subject_of,
)
from headrace.lab.formats.number_formats import in_format
from headrace.lab.lab import Lab
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.statistics import ratio_interval
from headrace.lab.values import Check, Findings, Prediction
from headrace.limits.workloads import decode_limit, prefill_limit
from headrace.ops.cost import CostModel

_RUNGS = ("batch 1 = batch n", "fused = unfused")
#: (faster, slower) of predicted ratios of speed.
_TG_RATIOS = (("q8_0", "f32"), ("q4_0", "q8_0"), ("q2_k", "q4_0"))


class Formats(Experiment):
    """See docs/lab/formats.md."""

    name = "formats"
    title = "Number formats: size, speed, and how far predictions move"
    question = "What do fewer bits per weight buy in size and speed, and what do they cost?"
    claim = (
        "Decoding reads every weight, so half the bytes give twice the speed; each bit less makes "
        "the error four times as large; but fewer bits are not automatically faster."
    )
    quick_s = 40.0
    full_s = 600.0
    faults = ("row-swap", "skipped-norm")
    try_this = (
        "`headrace lab run formats --model qwen2.5-coder-1.5b`: rows that divide by 256, so that "
        "K-quants are what they say.",
        "A file in f16 or bf16 as `--model`: then nothing was lost before the reference.",
        "`headrace chat MODEL --quantize q2_k`: does one notice?",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        rates = lab.rates()
        model = lab.open().program
        names = {name for pair in _TG_RATIOS for name in pair}
        tg, pp = {}, {}
        for name in names:
            costs = CostModel(in_format(model, name, lab.threads), cache_bytes=rates.llc_bytes)
            tg[name] = decode_limit(costs, rates, STEPS, depth=DEPTH).tok_per_s
            pp[name] = prefill_limit(costs, rates, PROMPT).tok_per_s
        predictions = [
            Prediction(
                f"tg {a}/{b}", f"tokens per second of {a} over {b}", tg[a] / tg[b], "×",
                "ratio of the bounds: bytes read in a step", tolerance=1.25,
            )
            for a, b in _TG_RATIOS
        ]  # fmt: skip
        predictions.append(
            Prediction(
                "pp q4_0/q8_0", "prompt tokens per second of q4_0 over q8_0",
                pp["q4_0"] / pp["q8_0"], "×",
                "ratio of the bounds: a prompt is limited by arithmetic, which is int8 for both",
                tolerance=1.15,
            )
        )  # fmt: skip
        for fewer, more, bits in (("q4_0", "q5_0", 1), ("q5_0", "q8_0", 3)):
            predictions.append(
                Prediction(
                    f"kl {fewer}/{more}", f"KL of {fewer} over that of {more}", 4.0**bits, "×",
                    f"bits less: {bits}; steps {2**bits} × as wide, and KL grows as their square",
                    tolerance=2.0,
                )
            )  # fmt: skip
        return predictions

    def check(self, lab: Lab) -> list[Check]:
        checks = [worked_example(), *round_trips(lab)]
        subject = subject_of(lab, in_format(lab.open().program, "q4_0", lab.threads), faulty=True)
        return checks + rung_checks(subject, _RUNGS, "q4_0: ")

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        findings = Findings()
        with lab.stage("quality", 0.5):
            found = measure_quality(lab)
        with lab.stage("speed", 0.5):
            measure_speed(lab, found)
        by_name = {own.name: own for own in found}
        for a, b in _TG_RATIOS:
            findings.measured[f"tg {a}/{b}"] = ratio_interval(by_name[a].tg, by_name[b].tg)
        findings.measured["pp q4_0/q8_0"] = ratio_interval(by_name["q4_0"].pp, by_name["q8_0"].pp)
        for a, b in (("q4_0", "q5_0"), ("q5_0", "q8_0")):
            kls = ([m.kl for m in by_name[name].moved] for name in (a, b))
            findings.measured[f"kl {a}/{b}"] = ratio_interval(*kls)
        findings.tables += [quality_table(found), speed_table(found)]
        conclude(findings, found)
        draw(lab, found)
        stored = sorted({t.format.name for t in lab.open().program.weights.values()})
        findings.notes.append(
            f"The file stores {', '.join(stored)}; its numbers, in float32, are the reference. A "
            "format whose grid the file already lies on loses nothing here (no merit of it), and "
            "others round a second time. f32 multiplies float32 by float32; block formats round "
            "activations to int8, bf16 to bf16, which is part of their figures."
        )
        return findings
