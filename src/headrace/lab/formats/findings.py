"""What follows from the measured formats: tables, conclusions, the picture.

Knows what was measured, nothing of how.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from headrace.lab.formats.measurement import CHUNK, DEPTH, PROMPT, REFERENCE, STEPS, Format
from headrace.lab.lab import Lab
from headrace.lab.plots import style
from headrace.lab.statistics import (
    Interval,
    exact,
    mean_interval,
    median_interval,
    ratio_interval,
    resolved,
)
from headrace.lab.values import Cell, Findings, Table
from headrace.quant.formats import FORMATS


def quality_table(found: Sequence[Format]) -> Table:
    rows: list[list[Cell]] = []
    for own in found:
        kl, agrees = kl_of(own), mean_interval([m.agrees for m in own.moved])
        perplexity = math.exp(mean_interval([m.loss for m in own.moved]).value)
        more = mean_interval([m.more_loss for m in own.moved])
        rows.append(
            [own.name, ", ".join(own.sizes.formats), own.sizes.naive / 1e6, own.sizes.real / 1e6,
             kl.value, kl.low, kl.high, 100 * agrees.value, perplexity, 100 * more.low,
             100 * more.high]
        )  # fmt: skip
    scored = len(found[0].moved) * (CHUNK // 2 - 1)
    return Table(
        "quality",
        ["format", "matrices really in", "naive, MB", "real, MB", "KL, nats", "low", "high",
         "same first choice, %", "perplexity", "Δ loss, %, low", "Δ loss, %, high"],
        rows,
        f"Against f32, {scored} positions in {len(found[0].moved)} chunks of English; intervals "
        "are of the mean over chunks. Δ loss: 100 × nats per token above f32, about the per cent "
        "by which perplexity is higher.",
    )  # fmt: skip


def speed_table(found: Sequence[Format]) -> Table:
    rows: list[list[Cell]] = []
    for own in found:
        pp, tg = median_interval(own.pp), median_interval(own.tg)
        rows.append([own.name, own.sizes.real / 1e6, pp.value, pp.low, pp.high, tg.value, tg.low,
                     tg.high])  # fmt: skip
    return Table(
        "speed",
        ["format", "real, MB", f"PP{PROMPT}, tok/s", "low", "high", f"TG{STEPS}, tok/s", "low ",
         "high "],
        rows,
        f"Batch 1, TG behind {DEPTH} positions; {len(found[0].pp)} repetitions in turns; low, "
        f"high: {median_interval(found[0].pp).what}.",
    )  # fmt: skip


def kl_of(own: Format) -> Interval:
    if own.name == REFERENCE:
        return exact(0.0, "the reference")
    mean = mean_interval([m.kl for m in own.moved])
    return replace(mean, low=max(0.0, mean.low))


def conclude(findings: Findings, found: Sequence[Format]) -> None:
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
    kl = kl_of(floor)
    if all(FORMATS[name].block_size > 1 for name in floor.sizes.formats):
        findings.conclude(
            f"The file as it is has the reference's very weights and yet a KL of {kl:.2g}: what "
            "rounding activations to int8 costs, with weights that lose nothing."
        )
    quantised = [own for own in ordered if own.name not in (REFERENCE, "file")]
    for larger, smaller in pairwise(quantised):
        a, b = kl_of(larger), kl_of(smaller)
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


def draw(lab: Lab, found: Sequence[Format]) -> None:
    caption = (
        "Formats by size. Left: how far predictions move (KL against f32), with 95 % intervals "
        "over chunks. Right: generated tokens per second; crosses: what the bytes alone would give "
        "from f32."
    )
    alt = "Left: KL to f32 by format, log axis; right: tokens per second by format"
    ordered = sorted(found, key=lambda own: (own.sizes.real, own.name))
    places = range(len(ordered))
    reference = next(own for own in found if own.name == REFERENCE)
    first = median_interval(reference.tg).value * reference.sizes.real
    dots, crosses = style(0) | {"linestyle": ""}, style(1) | {"linestyle": "", "marker": "x"}
    with lab.figure("formats", caption, alt, columns=2) as (_, axes):
        for place, own in zip(places, ordered, strict=True):
            kl, tg = kl_of(own), median_interval(own.tg)
            if own.name != REFERENCE:
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
