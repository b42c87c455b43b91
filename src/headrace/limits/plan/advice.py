"""What to make of the rows: which hardware, and what to do first.

The order is that of docs/plan.md: everything lossless, then quantisation, then architecture. Every
sentence carries a figure of this plan: the same question, asked again with one thing changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.limits.bound import Peaks, bound
from headrace.limits.plan.formats import Fp8KV, requantized, weight_format
from headrace.limits.plan.hardware import Hardware
from headrace.limits.plan.overrides import Overrides, changed_model
from headrace.limits.plan.question import Question
from headrace.limits.plan.row import Row
from headrace.limits.plan.table import Planner
from headrace.limits.plan.times import Load, Part, chunks_of, decode_contexts, decode_step, rates_of
from headrace.limits.plan.words import figures, shown_gb, shown_s, shown_usd
from headrace.models.outline import ModelOutline

#: How many guesses, and which share of them that passes, speculation is judged by.
GUESSES, ACCEPTED = 4, 0.7
#: Less than this share of a GPU's memory to spare is not much.
CLOSE = 0.1
#: Formats that the hardware's engines serve in, from wide to narrow.
NARROWER = {"cpu": ("q8_0", "q4_k"), "gpu": ("fp8", "int4"), "apple": ("q8_0", "q4_k")}

#: Below a table of closed forms, which know no fused ops, no blocks and no buffers.
PROGRAM_NOTE = (
    "Fused kernels, speculation and the command are by the model's program, the rest by the closed "
    "forms."
)


class Stage(Enum):
    """The order of advice."""

    LOSSLESS = "lossless"
    QUANTISATION = "quantisation"
    ARCHITECTURE = "architecture"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do, or not. worth: whether it helps this plan. text: sentences with figures."""

    stage: Stage
    title: str
    worth: bool
    text: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """verdicts: one sentence per hardware. choice: which to take and why. focus: the row that the
    steps are about, None without any known row. note: what has to be said of the steps."""

    verdicts: tuple[str, ...]
    choice: str
    focus: Row | None
    steps: tuple[Advice, ...]
    note: str = ""


def recommend(planner: Planner, rows: Sequence[Row]) -> Recommendation:
    """Reads the planner's rows; asks again for every step of advice."""
    by_hardware: dict[str, list[Row]] = {}
    for row in rows:
        by_hardware.setdefault(row.hardware.name, []).append(row)
    verdicts = tuple(_verdict(planner, group) for group in by_hardware.values())
    choice, focus = _choice(rows)
    if focus is None:
        return Recommendation(verdicts, choice, None, ())
    steps = () if focus.times is None else tuple(_steps(planner, focus))
    note = PROGRAM_NOTE if planner.question.formula == "paper" else ""
    return Recommendation(verdicts, choice, focus, steps, note)


# ---- hardware -----------------------------------------------------------------------------------


def _verdict(planner: Planner, rows: Sequence[Row]) -> str:
    question = planner.question
    hardware, name = rows[0].hardware, rows[0].hardware.name
    if hardware.memory_bytes is None:
        return f"{name}: its memory is not known, so nobody can say what fits."
    most = rows[0].max_concurrency or 0
    context = f"{question.context:,} tokens"
    largest = max(rows, key=lambda r: r.concurrency)
    asked = largest.concurrency
    if not most:
        missing = planner.memory(hardware, question.context, 1).total - hardware.memory_bytes
        text = f"{name}: not even one request of {context} fits, by {shown_gb(missing)} GB."
        return text + _several(planner, hardware, asked)
    requests = f"{asked:,} request{'s' if asked > 1 else ''} of {context}"
    if largest.fits:
        verb = "fit" if asked > 1 else "fits"
        text = f"{name}: {requests} {verb}, {shown_gb(largest.free_bytes)} GB to spare"
        text += f"; at most {most:,} do." if most > asked else "; not one more does."
        if hardware.kind == "gpu" and (largest.free_bytes or 0) < CLOSE * hardware.memory_bytes:
            text += " That is close: drivers and engines take some for themselves."
    else:
        text = (
            f"{name}: {requests} need {shown_gb(-(largest.free_bytes or 0))} GB more than there "
            f"are; {most:,} fit, or {asked:,} of {largest.max_context or 0:,} tokens."
        )
        text += _several(planner, hardware, asked)
    if largest.within_targets is not None:
        text += (
            f" Within the targets: up to {largest.within_targets:,} at once."
            if largest.within_targets
            else " The targets are missed even by one request alone."
        )
    return text


def _several(planner: Planner, hardware: Hardware, asked: int) -> str:
    """How many GPUs would hold one request, and those asked for, if weights and cache are split
    evenly and every GPU has buffers of its own; "" where no number of them does."""
    limit, context = hardware.memory_bytes, planner.question.context
    if hardware.kind != "gpu" or limit is None:
        return ""
    needed: dict[int, int] = {}  # GPUs → requests
    for requests in (1, asked):
        memory = planner.memory(hardware, context, requests)
        room = limit - memory.activations - memory.overhead
        if room <= 0:
            return ""
        needed[math.ceil((memory.weights + memory.kv) / room)] = requests
    held = [
        f"{gpus:,} hold {'one' if requests == 1 else f'all {requests:,}'}"
        for gpus, requests in needed.items()
        if gpus > 1
    ]
    return (
        f" By memory, {' and '.join(held)}, if weights and cache are split evenly; times of "
        "several are not planned."
    )


def _choice(rows: Sequence[Row]) -> tuple[str, Row | None]:
    known = [r for r in rows if r.times is not None]
    fitting = [r for r in known if r.fits and r.meets is not False]
    names = {r.hardware.name for r in rows}
    if not fitting:
        best = _nearest(known)
        if any(r.fits for r in known):
            text = "What fits misses the targets; the steps below change most."
        elif all(r.hardware.memory_bytes is None for r in known or rows):
            text = "Nobody can say what fits; say how much there is, as --set memory_bytes=64GB."
        elif not known:
            text = (
                "Nobody can say how fast it is; say what its memory reads per second, as --set "
                "read_bytes_per_s=1e12."
            )
        else:
            text = "Nothing asked here fits; the steps below need less."
        return text, best
    priced = [r for r in fitting if r.usd_per_mtok is not None]
    if priced:
        best = min(priced, key=lambda r: r.sustained_usd_per_mtok or r.usd_per_mtok or 0.0)
        cost = best.sustained_usd_per_mtok or best.usd_per_mtok
        why = f"${shown_usd(cost)} per million tokens, the least of what fits"
        others = _left_out(rows, {r.hardware.name for r in priced})
        if others:
            why += f" and has a price ({others})"
    else:
        best = max(fitting, key=lambda r: r.total_tok_per_s or 0.0)
        why = f"{figures(best.total_tok_per_s or 0)} tok/s together, the most of what fits"
    if len(names) == 1 and len(rows) == 1:
        return "", best
    return f"{best.hardware.name} with {best.concurrency} at once: {why}.", best


def _left_out(rows: Sequence[Row], compared: set[str]) -> str:
    """Hardware that no price compares, grouped by why: `a, b: no price; c: does not fit`."""
    by_hardware: dict[str, list[Row]] = {}
    for row in rows:
        if row.hardware.name not in compared:
            by_hardware.setdefault(row.hardware.name, []).append(row)
    by_reason: dict[str, list[str]] = {}
    for name, group in by_hardware.items():
        fitting = [r for r in group if r.fits]
        if any(r.times is not None and r.meets is not False for r in fitting):
            reason = "no price"
        elif any(r.times is not None for r in fitting):
            reason = "misses the targets"
        elif fitting or group[0].hardware.memory_bytes is None:
            reason = "not all of its numbers are known"
        else:
            reason = "does not fit"
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _nearest(rows: Sequence[Row]) -> Row | None:
    """The row to improve where none does: the fastest per token of what fits, else the one that
    lacks the least memory."""
    fitting = [r for r in rows if r.fits and r.times is not None]
    if fitting:
        return min(fitting, key=lambda r: 1 / (r.tok_per_s or 1))
    return max(rows, key=lambda r: r.free_bytes or -math.inf, default=None)


# ---- what to do ---------------------------------------------------------------------------------


def _steps(asked: Planner, row: Row) -> Iterator[Advice]:
    question = replace(asked.question, ttft_s=None, tpot_s=None)
    planner = asked.asked(question)
    yield _batching(planner, row)
    yield _paging(planner, row)
    yield _fusion(planner, row)
    if row.times is not None and row.times.prefill_s is not None:
        yield _prefixes(row.times.prefill_s, question)
        yield _speculation(planner, row)
    yield from _quantisation(planner, row)
    yield _architecture(planner, row)


def _batching(planner: Planner, row: Row) -> Advice:
    """One request against many at once."""
    most = row.max_concurrency or 1
    many = row.concurrency if row.concurrency > 1 else min(most, 32)
    title = "continuous batching"
    if many < 2:
        return Advice(Stage.LOSSLESS, title, False, "Only one request fits at a time.")
    one, all_ = _tpot(planner, row, 1), _tpot(planner, row, many)
    text = (
        f"{many} at once generate {figures(many / all_)} tok/s together, "
        f"{figures(many * one / all_)} × one alone, and each waits {figures(all_ / one)} × as long "
        f"for a token. Requests should join and leave between steps, or the shortest wait for the "
        f"longest."
    )
    return Advice(Stage.LOSSLESS, title, True, text)


def _paging(planner: Planner, row: Row) -> Advice:
    """Blocks as needed against a reserve to the maximum."""
    question, limit = planner.question, row.hardware.memory_bytes
    used = question.prompt + question.output if question.output else question.context // 2
    title = "paged KV cache"
    if limit is None or not row.max_concurrency or used >= question.context:
        text = "Every request fills its context, so blocks on demand save little here."
        return Advice(Stage.LOSSLESS, title, False, text)
    shorter = planner.asked(replace(question, context=used, prompt=min(question.prompt, used)))
    most = shorter.max_concurrency(row.hardware, limit)
    what = "requests as long as yours" if question.output else "requests that use half of it"
    text = (
        f"Reserving {question.context:,} positions for everyone holds {row.max_concurrency:,} "
        f"requests; in blocks taken as they fill, {most:,} {what}."
    )
    return Advice(Stage.LOSSLESS, title, most > row.max_concurrency, text)


def _fusion(planner: Planner, row: Row) -> Advice:
    """The serial sum against the bound: what overlap and fused ops can give at most."""
    load = planner.load(row.hardware, row.concurrency)
    rates = rates_of(row.hardware, planner.weights)
    assert rates is not None
    limit = bound(planner.costs(row.hardware).step(chunks_of(decode_step(load))), rates, Peaks.OWN)
    gain = limit.serial_s / limit.bound_s
    text = (
        f"A step that generates would take {figures(gain)} × its bound with every op at its own "
        "limit, one after another; values that go through memory between two ops come on top, and "
        "fusing saves those."
    )
    return Advice(Stage.LOSSLESS, "fused kernels", gain > 1.05, text)


def _prefixes(prefill_s: float, question: Question) -> Advice:
    saved = prefill_s / question.prompt * 1000
    text = (
        "Every 1,000 tokens that a prompt shares with an earlier one (system prompt, earlier "
        f"turns) need not be computed: {shown_s(saved)} less to the first token."
    )
    return Advice(Stage.LOSSLESS, "prefix reuse", question.prompt > 64, text)


def _speculation(planner: Planner, row: Row) -> Advice:
    """Speed-up (1 − α^(γ+1)) ÷ ((1 − α)(γ·c + v)) with guesses that cost nothing (c = 0)."""
    load = planner.load(row.hardware, row.concurrency)
    rates = rates_of(row.hardware, planner.weights)
    assert rates is not None
    clock = planner.clock(row.hardware, rates)
    context = max(decode_contexts(load)[1], GUESSES + 1)
    cost = clock.seconds((Part(GUESSES + 1, context, load.concurrency),)) / clock.seconds(
        (Part(1, context, load.concurrency),)
    )
    gain = (1 - ACCEPTED ** (GUESSES + 1)) / (1 - ACCEPTED) / cost
    text = (
        f"Testing {GUESSES} guesses per request makes a step {figures(cost)} × as long; where "
        f"{ACCEPTED:.0%} of them pass and guessing costs nothing, generation is {figures(gain)} × "
        "as fast"
    )
    text += "." if gain > 1.05 else ": arithmetic has nothing to spare here; leave it off."
    return Advice(Stage.LOSSLESS, "speculation", gain > 1.05, text)


def _quantisation(planner: Planner, row: Row) -> Iterator[Advice]:
    question, now = planner.question, planner.weights
    found = False
    for name in NARROWER[row.hardware.kind]:
        wanted = weight_format(name)
        if wanted.bits_per_weight > now.bits_per_weight * 0.9:
            continue
        found = True
        program = requantized(question.model.program, wanted)
        worth, text = _changed(planner, row, program, question)
        title = f"{name} weights instead of {now.name.lower()}"
        text += " Check quality on your own texts." if worth else " Hardly worth it here."
        yield Advice(Stage.QUANTISATION, title, worth, text)
    if not found:
        text = f"{now.name} has {now.bits_per_weight:.1f} bits per weight already."
        yield Advice(Stage.QUANTISATION, "weights", False, text)
    positions = planner.paper.critical_positions()
    cached = row.concurrency * question.context
    heavy = cached > positions / 2
    text = (
        f"{cached:,} cached positions against {positions:,.0f} that weigh as much as the weights: "
    )
    if not heavy:
        yield Advice(Stage.QUANTISATION, "KV cache", False, text + "its format hardly matters.")
        return
    if row.hardware.kind == "cpu" or question.kv_format.element_bytes == 1:
        text += "the cache decides, and 4-bit weights do not shrink it; shorten the context."
        yield Advice(Stage.QUANTISATION, "KV cache", False, text)
        return
    less = replace(question, kv_format=Fp8KV())
    worth, changed = _changed(planner, row, question.model.program, less)
    yield Advice(Stage.QUANTISATION, "fp8 KV cache", worth, text + changed)


def _architecture(planner: Planner, row: Row) -> Advice:
    program = planner.program
    config = program.config
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if kv_heads == heads and heads % 8 == 0 and heads > 8:
        fewer = changed_model(program, Overrides({"num_kv_heads": 8}, None, {}, {}))
        worth, text = _changed(planner, row, fewer, planner.question)
        text += " Needs such a model, or pooled heads and some training."
        title = f"a model with 8 KV heads instead of {kv_heads}"
        return Advice(Stage.ARCHITECTURE, title, worth, text)
    shared = (
        f"{heads // kv_heads} query heads share a KV head already. " if kv_heads < heads else ""
    )
    text = (
        f"{shared}A model of half the parameters generates about twice as fast where weights bind."
    )
    return Advice(Stage.ARCHITECTURE, "another model", False, text)


def _changed(
    planner: Planner, row: Row, program: ModelOutline, question: Question
) -> tuple[bool, str]:
    """Memory, time and room of the row with another program or question, next to what it has; and
    whether time or room gains a twentieth or more."""
    other = planner.asked(replace(question, model=replace(question.model, program=program)))
    before, then = (p.row(row.hardware, row.concurrency) for p in (planner, other))
    worth = False
    parts = [f"{shown_gb(before.memory.total)} → {shown_gb(then.memory.total)} GB"]
    if before.times is not None and then.times is not None:
        old, new = before.times.tpot_s, then.times.tpot_s
        parts.append(f"{shown_s(old)} → {shown_s(new)} per token")
        worth = new < 0.95 * old
    if before.max_concurrency is not None and then.max_concurrency is not None:
        parts.append(f"{before.max_concurrency:,} → {then.max_concurrency:,} requests fit")
        worth = worth or then.max_concurrency > 1.05 * before.max_concurrency
    return worth, ", ".join(parts) + "."


def _tpot(planner: Planner, row: Row, concurrency: int) -> float:
    load: Load = planner.load(row.hardware, concurrency)
    times = planner.times(row.hardware, load)
    assert times is not None
    return times.tpot_s
