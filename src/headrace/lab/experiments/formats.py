"""formats: what fewer bits per weight buy, and what they cost."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.cases import Case
from headrace.bench.cases import Kind as CaseKind
from headrace.bench.measure import run_case
from headrace.bench.setup import Settings, make_config
from headrace.engine.core import Engine
from headrace.engine.model import native_executor, vocabulary_of
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.number_formats import Moved, Sizes, affine, compare, in_format, sizes
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.plots import style
from headrace.lab.statistics import (
    Interval,
    exact,
    mean_interval,
    median_interval,
    ratio_interval,
    resolved,
)
from headrace.lab.values import Cell, Check, Findings, Prediction, Table
from headrace.limits.workloads import decode_limit, prefill_limit
from headrace.models.load import LoadedModel
from headrace.native import core
from headrace.ops.cost import CostModel
from headrace.ops.packed import NATIVE_FORMATS
from headrace.quant.dequantize import dequantize_bytes
from headrace.quant.formats import FORMATS, NumberFormat
from headrace.quant.quantize import quantize
from headrace.verify.faults import NO_FAULT
from headrace.verify.probe import GREEDY, run_requests
from headrace.verify.subject import Subject

Logits = npt.NDArray[np.float32]

QUICK = ("f32", "bf16", "q8_0", "q6_k", "q5_0", "q4_1", "q4_0", "q4_k", "q2_k", "file")
FULL = ("f32", "bf16", "f16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_0", "q4_k",
        "q3_k", "q2_k", "file")  # fmt: skip
_REFERENCE = "f32"
#: Tokens of a chunk of text; its second half is scored.
_CHUNK = 256
#: Of the reference's logits, which are kept.
_MOST_LOGIT_BYTES = 400_000_000
_PROMPT, _DEPTH, _STEPS = 256, 128, 32
_CASES = (Case(CaseKind.PREFILL, _PROMPT, 0), Case(CaseKind.DECODE, 0, _STEPS, depth=_DEPTH))
_RUNGS = ("batch 1 = batch n", "fused = unfused")
_LEGACY = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
_K = ("Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
#: (key, faster, slower) of predicted ratios of speed.
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
    quick_s = 75.0
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
            tg[name] = decode_limit(costs, rates, _STEPS, depth=_DEPTH).tok_per_s
            pp[name] = prefill_limit(costs, rates, _PROMPT).tok_per_s
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
        q, back = affine(5.2342, 0.1, 4)
        checks = [
            Check(
                "the worked example: x = 5.2342, s = 0.1, z = 4",
                q == 56 and math.isclose(back, 5.2) and math.isclose(5.2342 - back, 0.0342),
                f"q = {q}, x̂ = {back:.4g}, error {5.2342 - back:.4f}",
            ),
            *_round_trips(lab),
        ]
        subject = _subject(lab, in_format(lab.open().program, "q4_0", lab.threads), faulty=True)
        return checks + rung_checks(subject, _RUNGS, "q4_0: ")

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        findings = Findings()
        with lab.stage("quality", 0.5):
            found = _quality(lab)
        with lab.stage("speed", 0.5):
            _speed(lab, found)
        by_name = {own.name: own for own in found}
        for a, b in _TG_RATIOS:
            findings.measured[f"tg {a}/{b}"] = ratio_interval(by_name[a].tg, by_name[b].tg)
        findings.measured["pp q4_0/q8_0"] = ratio_interval(by_name["q4_0"].pp, by_name["q8_0"].pp)
        for a, b in (("q4_0", "q5_0"), ("q5_0", "q8_0")):
            kls = ([m.kl for m in by_name[name].moved] for name in (a, b))
            findings.measured[f"kl {a}/{b}"] = ratio_interval(*kls)
        findings.tables += [_quality_table(found), _speed_table(found)]
        _conclude(findings, found)
        _draw(lab, found)
        stored = sorted({t.format.name for t in lab.open().program.weights.values()})
        findings.notes.append(
            f"The file stores {', '.join(stored)}; its numbers, in float32, are the reference. A "
            "format whose grid the file already lies on loses nothing here (no merit of it), and "
            "others round a second time. f32 multiplies float32 by float32; block formats round "
            "activations to int8, bf16 to bf16, which is part of their figures."
        )
        return findings


@dataclass(slots=True)
class _Format:
    """One format. moved: per chunk. pp, tg: tokens per second, one per repetition."""

    name: str
    model: LoadedModel
    sizes: Sizes
    subject: Subject
    moved: list[Moved]
    pp: list[float]
    tg: list[float]


def _subject(lab: Lab, model: LoadedModel, *, faulty: bool = False) -> Subject:
    subject = lab.subject(fault=lab.fault if faulty else NO_FAULT)
    subject.program = model
    return subject


# ---- correctness ---------------------------------------------------------------------------------


def _round_trips(lab: Lab) -> list[Check]:
    """Every quantiser on random numbers: the native bytes, what they unpack to, and the error."""
    values = (lab.random().standard_normal((8, 512)) * 0.1).astype(np.float32)
    gguf: Any = importlib.import_module("gguf") if importlib.util.find_spec("gguf") else None
    same_bytes, same_floats, in_step = [], [], []
    for name in (*_LEGACY, *_K):
        kind = FORMATS[name]
        data = core().quantize(
            NATIVE_FORMATS["F32"], values.view(np.uint8), values.shape[1], NATIVE_FORMATS[name],
            threads=1,
        )  # fmt: skip
        back = dequantize_bytes(data, kind)
        if name in _LEGACY:
            same_bytes.append(bool((data == quantize(values, kind).data).all()))
        if gguf is not None:
            theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
            same_floats.append(bool((theirs == back).all()))
        in_step.append(float(np.abs(back - values).max()) <= _step(values, kind))
    checks = [
        Check("native quantisers = numpy's", all(same_bytes), f"bytes of {', '.join(_LEGACY)}"),
        Check(
            "a rounded number is within a step of the number", all(in_step),
            f"{len(in_step)} formats, step = range of the block ÷ (2^bits − 1)",
        ),
    ]  # fmt: skip
    if gguf is not None:
        what = f"{len(same_floats)} formats, equal floats"
        checks.append(Check("unpacked as the gguf package unpacks", all(same_floats), what))
    return checks


def _step(values: npt.NDArray[np.float32], kind: NumberFormat) -> float:
    """The widest a step of such a format may be: a block's range over its codes."""
    widest = 2 * float(np.abs(values).max())
    codes: int = 2**kind.naive_bits
    return widest / (codes - 1)


# ---- quality -------------------------------------------------------------------------------------


def _quality(lab: Lab) -> list[_Format]:
    source = lab.open().program
    chunks = _chunks(lab, source.vocab_size)
    found, reference = [], None
    names = QUICK if lab.quick else FULL
    for number, name in enumerate(names):
        lab.tell(name, number / len(names))
        model = in_format(source, name, lab.threads)
        subject = _subject(lab, model)
        logits = _logits(subject, chunks)
        reference = logits if name == _REFERENCE else reference
        assert reference is not None, "the reference comes first"
        targets = [np.array(chunk[_CHUNK // 2 + 1 :]) for chunk in chunks]
        moved = [compare(r, o, t) for r, o, t in zip(reference, logits, targets, strict=True)]
        found.append(_Format(name, model, sizes(model), subject, moved, [], []))
    return found


def _chunks(lab: Lab, vocab_size: int) -> list[list[int]]:
    affordable = _MOST_LOGIT_BYTES // (4 * vocab_size * (_CHUNK // 2))
    count = max(3, min(8 if lab.quick else 24, affordable))
    return lab.passages(count, _CHUNK)


def _logits(subject: Subject, chunks: Sequence[list[int]]) -> list[Logits]:
    """Of the positions that predict each chunk's second half, [127, ids] per chunk."""
    positions = range(_CHUNK // 2, _CHUNK - 1)
    engine, probe = subject.engine(positions)
    found = []
    for chunk in chunks:
        probe.rows_seen.clear()
        run = run_requests(engine, probe, [chunk], GREEDY.replace(max_tokens=1))
        request = run.requests[0].request_id
        rows = [run.rows[request, 0, p] for p in positions]
        found.append(np.stack(rows)[:, : subject.num_ids])
    return found


# ---- speed ---------------------------------------------------------------------------------------


def _speed(lab: Lab, found: Sequence[_Format]) -> None:
    """PP and TG of all formats in turns, so that a slow moment hits all of them."""
    opened = lab.open()
    engines, pool = [], None
    for own in found:
        model = replace(opened, program=own.model)
        config = make_config(model, _CASES, Settings(), lab.threads)
        executor = native_executor(own.model, config, weights=own.subject.weights, pool=pool)
        pool = pool or executor.pool
        engines.append(Engine(executor, vocabulary_of(model), config))
    repetitions = 5 if lab.quick else 12
    for repetition in range(repetitions + 1):  # the first warms up
        lab.rates()
        for number, (own, engine) in enumerate(zip(found, engines, strict=True)):
            done = (repetition + number / len(found)) / (repetitions + 1)
            lab.tell(f"{own.name}, repetition {repetition} of {repetitions}", done)
            pp, tg = (run_case(engine, case) for case in _CASES)
            if repetition:
                own.pp.append(pp.num_tokens / pp.seconds)
                own.tg.append(tg.num_tokens / tg.seconds)


# ---- tables, conclusions, picture ----------------------------------------------------------------


def _quality_table(found: Sequence[_Format]) -> Table:
    rows: list[list[Cell]] = []
    for own in found:
        kl, agrees = _kl(own), mean_interval([m.agrees for m in own.moved])
        perplexity = math.exp(mean_interval([m.loss for m in own.moved]).value)
        more = mean_interval([m.more_loss for m in own.moved])
        rows.append(
            [own.name, ", ".join(own.sizes.formats), own.sizes.naive / 1e6, own.sizes.real / 1e6,
             kl.value, kl.low, kl.high, 100 * agrees.value, perplexity, 100 * more.low,
             100 * more.high]
        )  # fmt: skip
    scored = len(found[0].moved) * (_CHUNK // 2 - 1)
    return Table(
        "quality",
        ["format", "matrices really in", "naive, MB", "real, MB", "KL, nats", "low", "high",
         "same first choice, %", "perplexity", "Δ loss, %, low", "Δ loss, %, high"],
        rows,
        f"Against f32, {scored} positions in {len(found[0].moved)} chunks of English; intervals "
        "are of the mean over chunks. Δ loss: 100 × nats per token above f32, about the per cent "
        "by which perplexity is higher.",
    )  # fmt: skip


def _speed_table(found: Sequence[_Format]) -> Table:
    rows: list[list[Cell]] = []
    for own in found:
        pp, tg = median_interval(own.pp), median_interval(own.tg)
        rows.append([own.name, own.sizes.real / 1e6, pp.value, pp.low, pp.high, tg.value, tg.low,
                     tg.high])  # fmt: skip
    return Table(
        "speed",
        ["format", "real, MB", f"PP{_PROMPT}, tok/s", "low", "high", f"TG{_STEPS}, tok/s", "low ",
         "high "],
        rows,
        f"Batch 1, TG behind {_DEPTH} positions; {len(found[0].pp)} repetitions in turns; low, "
        f"high: {median_interval(found[0].pp).what}.",
    )  # fmt: skip


def _kl(own: _Format) -> Interval:
    if own.name == _REFERENCE:
        return exact(0.0, "the reference")
    mean = mean_interval([m.kl for m in own.moved])
    return replace(mean, low=max(0.0, mean.low))


def _conclude(findings: Findings, found: Sequence[_Format]) -> None:
    """Formats by size, the larger of each pair of neighbours against the smaller."""
    ordered = sorted(found, key=lambda own: -own.sizes.real)
    for larger, smaller in pairwise(ordered):
        ratio = ratio_interval(smaller.tg, larger.tg)
        saved = 100 * (1 - smaller.sizes.real / larger.sizes.real)
        if saved < 1:
            continue
        clear = ratio.low > 1 or ratio.high < 1
        word = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "faster or slower"
        findings.conclude(
            f"{smaller.name} has {saved:.0f} % fewer bytes than {larger.name} and decodes {word}: "
            f"{ratio:.2f} × its tokens per second.",
            clear,
        )
    floor = next(own for own in found if own.name == "file")
    kl = _kl(floor)
    if all(FORMATS[name].block_size > 1 for name in floor.sizes.formats):
        findings.conclude(
            f"The file as it is has the reference's very weights and yet a KL of {kl:.2g}: what "
            "rounding activations to int8 costs, with weights that lose nothing."
        )
    quantised = [own for own in ordered if own.name not in (_REFERENCE, "file")]
    for larger, smaller in pairwise(quantised):
        a, b = _kl(larger), _kl(smaller)
        if not resolved(a, b):
            findings.conclude(
                f"whether {smaller.name} moves predictions more than {larger.name}: KL {b:.2g} "
                f"against {a:.2g}.",
                False,
            )
    higher = {own.name: mean_interval([m.more_loss for m in own.moved]) for own in quantised}
    worse = [name for name, more in higher.items() if more.low > 0]
    same = [name for name, more in higher.items() if more.low <= 0]
    findings.conclude(
        f"Perplexity is above that of f32 for {', '.join(worse) or 'none'}"
        + (f"; for {', '.join(same)} that is open." if same else "."),
        bool(worse),
    )


def _draw(lab: Lab, found: Sequence[_Format]) -> None:
    caption = (
        "Formats by size. Left: how far predictions move (KL against f32), with 95 % intervals "
        "over chunks. Right: generated tokens per second; crosses: what the bytes alone would give "
        "from f32."
    )
    alt = "Left: KL to f32 by format, log axis; right: tokens per second by format"
    ordered = sorted(found, key=lambda own: (own.sizes.real, own.name))
    places = range(len(ordered))
    reference = next(own for own in found if own.name == _REFERENCE)
    first = median_interval(reference.tg).value * reference.sizes.real
    dots, crosses = style(0) | {"linestyle": ""}, style(1) | {"linestyle": "", "marker": "x"}
    with lab.figure("formats", caption, alt, columns=2) as (_, axes):
        for place, own in zip(places, ordered, strict=True):
            kl, tg = _kl(own), median_interval(own.tg)
            if own.name != _REFERENCE:
                axes[0].errorbar([place], [kl.value], yerr=_ends(kl), **dots)
            axes[1].errorbar([place], [tg.value], yerr=_ends(tg), **dots)
        axes[1].plot(places, [first / own.sizes.real for own in ordered], **crosses)
        axes[0].set_yscale("log")
        axes[0].set_ylabel("KL to f32, nats")
        axes[1].set_ylabel("generated tokens per second")
        axes[1].set_ylim(bottom=0)
        labels = [f"{own.name}, {own.sizes.real / 1e6:.0f} MB" for own in ordered]
        for axis in axes:
            axis.set_xticks(places, labels, rotation=40, ha="right", fontsize=8)
            axis.set_xlim(-0.5, len(ordered) - 0.5)


def _ends(interval: Interval) -> list[list[float]]:
    """Error bars as matplotlib takes them; a lower end of 0 stays on a log axis."""
    low = max(interval.low, 1e-3 * interval.value)
    return [[interval.value - low], [interval.high - interval.value]]
