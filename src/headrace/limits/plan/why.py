"""Every formula of a row with its numbers put in (`--why`), and how it differs from the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace.limits.bound import Peaks, bound
from headrace.limits.estimate import Calibration, parts_of
from headrace.limits.plan.differences import differences
from headrace.limits.plan.lines import Line, Section, in_bytes, signed
from headrace.limits.plan.question import Question
from headrace.limits.plan.row import Row, Times
from headrace.limits.plan.table import Planner, peak_of
from headrace.limits.plan.times import (
    Load,
    Step,
    chunks_of,
    decode_contexts,
    decode_step,
    knows_peaks,
    prompt_step,
    rates_of,
)
from headrace.limits.plan.words import figures, shown_s, shown_usd
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Totals, Unit


def why(question: Question, rows: tuple[Row, ...]) -> tuple[Section, ...]:
    """The model's own lines, then those of every row."""
    planner = Planner(question)
    paper = question.formula == "paper"
    sections = [Section("The model", tuple(_model(planner, paper=paper)))]
    for row in rows:
        title = f"{row.hardware.name}, {row.concurrency} at once"
        sections.append(Section(f"{title}: memory", tuple(_memory(planner, row, paper=paper))))
        rates = rates_of(row.hardware, planner.weights)
        if row.times is None or rates is None:
            continue
        times = _paper_times if paper else _program_times
        sections.append(Section(f"{title}: times", tuple(times(planner, row, rates))))
        if not paper:
            lines = tuple(differences(planner, row, rates))
            sections.append(Section(f"{title}: against the closed forms", lines))
    return tuple(sections)


# ---- the model ----------------------------------------------------------------------------------


def _model(planner: Planner, *, paper: bool) -> Iterator[Line]:
    c, closed, kv = planner.program.config, planner.paper, planner.question.kv_format
    tables = 1 if c.tied_embeddings else 2
    v, e, f, layers = c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers
    h, k, d = c.num_heads, c.num_kv_heads, c.head_dim
    formula = Line(
        "parameters (closed form)" if not paper else "parameters",
        f"{tables}·V·E + 3·E·F·L + (2·E·H·D + 2·E·K·D)·L",
        f"{tables}·{v}·{e} + 3·{e}·{f}·{layers} + (2·{e}·{h}·{d} + 2·{e}·{k}·{d})·{layers}",
        f"{closed.num_parameters:,}",
    )
    if paper:
        yield formula
        yield Line(
            "weights",
            "parameters × bytes of one",
            f"{closed.num_parameters:,} × {closed.bytes_per_parameter:.4g}",
            in_bytes(closed.parameter_bytes),
        )
        yield Line(
            "KV of a token",
            "2·K·D·L × bytes of a number",
            f"2·{k}·{d}·{layers} × {kv.element_bytes}",
            in_bytes(closed.kv_bytes_per_position),
        )
    else:
        yield from _weights(planner)
        yield formula
        yield from _kv_of_a_token(planner)
    yield Line(
        "cached tokens that weigh as much as the parameters",
        "weights ÷ KV of a token",
        f"{closed.parameter_bytes:,.0f} ÷ {closed.kv_bytes_per_position:,}",
        f"{closed.critical_positions():,.0f}",
    )


def _weights(planner: Planner) -> Iterator[Line]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    bits: dict[str, float] = {}
    for weight in planner.program.weights.values():
        counts[weight.format.name] += weight.rows * weight.columns
        sizes[weight.format.name] += weight.num_bytes
        bits[weight.format.name] = weight.format.bits_per_weight
    parts = [f"{n:,} × {bits[name]:g}⁄8 ({name})" for name, n in counts.most_common()]
    yield Line(
        "weights as stored",
        "Σ numbers × bits ÷ 8",
        " + ".join(parts),
        in_bytes(sum(sizes.values())),
    )


def _kv_of_a_token(planner: Planner) -> Iterator[Line]:
    kv = planner.question.kv_format
    for group in planner.program.kv_groups:
        name = "KV of a token" if group.window is None else f"KV of a token, window {group.window}"
        yield Line(
            name,
            "layers × KV heads × (key + value) × bytes of a number",
            f"{len(group.layers)} × {group.kv_heads} × ({group.k_dim} + {group.v_dim}) × "
            f"{kv.element_bytes}",
            in_bytes(group.bytes_per_position(kv)),
        )


# ---- memory -------------------------------------------------------------------------------------


def _memory(planner: Planner, row: Row, *, paper: bool) -> Iterator[Line]:
    q, memory, n = planner.question, row.memory, row.concurrency
    if paper:
        per_token = planner.paper.kv_bytes_per_position
        numbers = f"{n} × {q.context:,} × {per_token:,}"
        yield Line("KV", "requests × context × KV of a token", numbers, in_bytes(memory.kv))
        numbers = f"{memory.weights:,} + {memory.kv:,}"
        yield Line("total", "weights + KV", numbers, in_bytes(memory.total))
    else:
        yield Line(
            "weights",
            "as the kernels keep them" if row.hardware.kind == "cpu" else "as stored",
            "",
            in_bytes(memory.weights),
        )
        yield Line(
            "KV",
            f"requests × blocks of {q.block_size} that a request of the whole context needs",
            f"{n} × {memory.kv / n:,.0f}",
            in_bytes(memory.kv),
        )
        budget = q.budget(row.hardware.kind, n)
        formula = f"buffers of a step of {budget:,} tokens, rotary tables"
        yield Line("activations", formula, "", in_bytes(memory.activations))
        ours = row.hardware.kind == "cpu"
        other = (
            "the process, its vocabulary, its requests" if ours else "of another engine: not known"
        )
        yield Line("other", other, "", in_bytes(memory.overhead))
        yield Line(
            "total",
            "weights + KV + activations + other",
            f"{memory.weights:,} + {memory.kv:,} + {memory.activations:,} + {memory.overhead:,}",
            in_bytes(memory.total),
        )
    limit = row.hardware.memory_bytes
    if limit is not None:
        fits = "fits" if row.fits else "does not fit"
        numbers = f"{limit:,.0f} − {memory.total:,}"
        left = f"{signed(row.free_bytes or 0)} bytes: {fits}"
        yield Line("left", "memory − total", numbers, left)


# ---- times --------------------------------------------------------------------------------------


def _paper_times(planner: Planner, row: Row, rates: MachineRates) -> Iterator[Line]:
    paper, load = planner.paper, planner.load(row.hardware, row.concurrency)
    assert row.times is not None
    context, n = decode_contexts(load)[1], row.concurrency
    yield Line(
        "TPOT",
        "(parameters + requests × KV of the context) ÷ bandwidth",
        f"({paper.parameter_bytes:,.0f} + {n} × {context * paper.kv_bytes_per_position:,}) ÷ "
        f"{rates.read_bytes_per_s:g}",
        shown_s(row.times.tpot_s),
    )
    if knows_peaks(rates):
        peak = peak_of(planner.weights.name, rates)
        yield Line(
            "TTFT alone",
            "max(2 · parameters · prompt ÷ peak, bytes ÷ bandwidth)",
            f"max(2 · {paper.num_parameters:,} · {load.prompt:,} ÷ {peak:g}, "
            f"{paper.step_bytes(load.prompt, 1):,.0f} ÷ {rates.read_bytes_per_s:g})",
            shown_s(row.times.prefill_s),
        )
        yield Line(
            "TTFT of all at once, mean",
            "TTFT alone × (requests + 1) ÷ 2",
            f"{shown_s(row.times.prefill_s)} × ({n} + 1) ÷ 2",
            shown_s(row.times.ttft_s),
        )
    yield from _rates(row)


def _program_times(planner: Planner, row: Row, rates: MachineRates) -> Iterator[Line]:
    load = planner.load(row.hardware, row.concurrency)
    costs = planner.costs(row.hardware)
    assert row.times is not None
    contexts = decode_contexts(load)
    step = f"a step that generates, at {contexts[1]:,} positions each"
    yield from _step(step, costs, decode_step(load), rates)
    calibration = planner.question.calibration if row.hardware.measured else None
    if calibration is not None:
        yield from _estimated(decode_step(load), costs, rates, calibration)
    if contexts[0] != contexts[2]:
        yield Line(
            "TPOT",
            "mean over the output (Simpson)",
            f"contexts {contexts[0]:,}, {contexts[1]:,}, {contexts[2]:,}",
            shown_s(row.times.tpot_s),
        )
    if row.times.prefill_s is not None:
        first = prompt_step(load)
        what = f"the first step of a prompt, {first[0].num_new:,} tokens"
        yield from _step(what, costs, first, rates)
        if calibration is not None:
            yield from _estimated(first, costs, rates, calibration)
        yield from _prompts(load, row.times)
    yield from _rates(row)


def _estimated(
    step: Step, costs: CostModel, rates: MachineRates, calibration: Calibration
) -> Iterator[Line]:
    """The parts of a calibrated estimate (limits/estimate.py)."""
    parts = parts_of(costs.step(chunks_of(step)), rates, calibration)
    for part in parts:
        what = f"  {part.name} × {part.count:,}"
        if part.share is None:
            yield Line(what, "fixed", "", shown_s(part.seconds))
            continue
        numbers = f"{shown_s(part.roof_s)} ÷ {part.share:.2g} + {shown_s(part.fixed_s)}"
        yield Line(what, "roof ÷ share that is reached + fixed", numbers, shown_s(part.seconds))
    yield Line("  estimate", "the sum of these", "", shown_s(sum(p.seconds for p in parts)))


def _prompts(load: Load, times: Times) -> Iterator[Line]:
    num_steps = -(-load.prompt // load.budget)
    yield Line(
        "TTFT alone",
        f"steps of at most {load.budget:,} tokens",
        f"{num_steps:,} for {load.prompt:,} tokens",
        shown_s(times.prefill_s),
    )
    if load.concurrency > 1:
        others = load.concurrency - 1
        yield Line(
            "TTFT of one that joins",
            "the same with the others' tokens in every step",
            f"{load.budget:,} − {others:,} prompt tokens a step",
            shown_s(times.joining_s),
        )
        total = load.concurrency * load.prompt
        yield Line(
            "TTFT of all at once, mean",
            "prompts in order; who is done generates meanwhile",
            f"{load.concurrency:,} × {load.prompt:,} = {total:,} prompt tokens",
            shown_s(times.ttft_s),
        )


def _step(what: str, costs: CostModel, step: Step, rates: MachineRates) -> Iterator[Line]:
    """Bytes by class and operations by unit of one step, and its bound."""
    cost = costs.step(chunks_of(step))
    total, limit = cost.total, bound(cost, rates, Peaks.OWN)
    yield Line(
        f"{what}: bytes",
        "weights + KV read + KV written + activations",
        f"{total.weight_bytes:,} + {total.kv_read_bytes:,} + {total.kv_write_bytes:,} + "
        f"{total.activation_bytes:,}",
        in_bytes(total.num_bytes),
    )
    yield Line(
        "  memory",
        "bytes ÷ bandwidth",
        f"{total.num_bytes:,} ÷ {rates.read_bytes_per_s:g}",
        shown_s(limit.memory_s),
    )
    if knows_peaks(rates):
        yield Line(
            "  compute",
            "Σ operations ÷ peak of their format",
            " + ".join(_operations(total, rates)),
            shown_s(limit.compute_s),
        )
        yield Line(
            "  bound",
            "max(memory, compute)",
            f"max({shown_s(limit.memory_s)}, {shown_s(limit.compute_s)})",
            f"{shown_s(limit.bound_s)}, by {limit.limited_by}",
        )


def _operations(total: Totals, rates: MachineRates) -> Iterator[str]:
    for unit, count, peak in (
        (Unit.INT8, total.int8_operations, rates.int8_ops_per_s),
        (Unit.BF16, total.bf16_operations, rates.bf16_ops_per_s),
        (Unit.F32, total.f32_operations, rates.f32_ops_per_s),
    ):
        if count:
            narrow = "narrow" if unit is Unit.INT8 else unit.value
            yield f"{count:.4g} ÷ {peak:.4g} ({narrow})"


def _rates(row: Row) -> Iterator[Line]:
    assert row.times is not None
    n, step = row.concurrency, row.times.tpot_s
    yield Line("tok/s of one", "1 ÷ TPOT", f"1 ÷ {step:.5g}", figures(1 / step))
    yield Line("tok/s together", "requests ÷ TPOT", f"{n} ÷ {step:.5g}", figures(n / step))
    if row.sustained_tok_per_s is not None:
        prefill = row.times.prefill_s or 0.0
        yield Line(
            "sustained",
            "requests × output ÷ (requests × TTFT alone + output × TPOT)",
            f"{n} × {row.output} ÷ ({n} × {prefill:.4g} + {row.output} × {step:.4g})",
            figures(row.sustained_tok_per_s),
        )
    price = row.hardware.price_usd_per_hour
    if price is not None and row.total_tok_per_s is not None:
        rate = row.sustained_tok_per_s or row.total_tok_per_s
        yield Line(
            "$ per million tokens",
            "price per hour ÷ 3600 ÷ tok/s × 10⁶",
            f"{price:g} ÷ 3600 ÷ {rate:.5g} × 10⁶",
            shown_usd(row.sustained_usd_per_mtok or row.usd_per_mtok),
        )
