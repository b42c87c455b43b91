"""How a plan of the model's own program differs from the closed forms, item by item in bytes."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.limits.plan.lines import Line, in_bytes, signed
from headrace.limits.plan.paper import Paper
from headrace.limits.plan.row import Row
from headrace.limits.plan.table import Planner
from headrace.limits.plan.times import chunks_of, decode_contexts, decode_step
from headrace.limits.plan.words import shown_s
from headrace.limits.rates import MachineRates
from headrace.ops.counts import Totals


def differences(planner: Planner, row: Row, rates: MachineRates) -> Iterator[Line]:
    """From the closed form's bytes of a generating step, and of memory, to the program's, item by
    item; the items add up exactly."""
    load = planner.load(row.hardware, row.concurrency)
    context, n = decode_contexts(load)[1], row.concurrency
    total = planner.costs(row.hardware).step(chunks_of(decode_step(load))).total
    paper: Paper = planner.paper
    closed = paper.step_bytes(context, n)
    yield Line(
        "a step, closed form",
        "parameters + requests × KV of the context",
        f"{paper.parameter_bytes:,.0f} + {n} × {context * paper.kv_bytes_per_position:,}",
        f"{in_bytes(closed)}, {shown_s(closed / rates.read_bytes_per_s)}",
    )
    items = byte_differences(planner, total, context, n)
    for what, (reason, size) in items.items():
        if round(size):
            yield Line(f"  {what}", reason, "", f"{signed(size)} bytes")
    change = total.num_bytes / closed - 1
    yield Line(
        "a step",
        "the sum of these",
        "",
        f"{in_bytes(total.num_bytes)}, {shown_s(total.num_bytes / rates.read_bytes_per_s)} "
        f"({change:+.2%})",
    )
    yield from _memory_differences(planner, row)


def _memory_differences(planner: Planner, row: Row) -> Iterator[Line]:
    closed = planner.paper.memory(planner.question.context, row.concurrency)
    numbers = f"{closed.weights:,} + {closed.kv:,}"
    yield Line("memory, closed form", "parameters + KV", numbers, in_bytes(closed.total))
    packed = row.hardware.kind == "cpu"
    now = row.memory
    for what, reason, size in (
        (
            "weights",
            "as kernels keep them" if packed else "norms, biases",
            now.weights - closed.weights,
        ),
        ("KV", "whole blocks; windows need less", now.kv - closed.kv),
        ("activations", "buffers, rotary tables", now.activations),
        ("other", "the process", now.overhead),
    ):
        if size:
            yield Line(f"  {what}", reason, "", f"{signed(size)} bytes")
    change = now.total / closed.total - 1
    yield Line("memory", "the sum of these", "", f"{in_bytes(now.total)} ({change:+.2%})")


def byte_differences(
    planner: Planner, total: Totals, context: int, concurrency: int
) -> dict[str, tuple[str, float]]:
    """What → (why, bytes) that a step of the program moves more than the closed form says."""
    program, paper = planner.program, planner.paper
    embed = program.weights["embed"]
    gathered = min(concurrency, embed.rows) * embed.format.row_bytes(embed.columns)
    vectors = sum(w.num_bytes for w in program.weights.values() if len(w.shape) < 2)
    tied = "lm_head" not in program.weights
    items = {
        "embedding table": (
            "is the output matrix, and read as such"
            if tied
            else "not read whole: a step looks up the rows of its tokens",
            0.0 if tied else float(-embed.num_bytes),
        ),
        "embedding rows": (f"{concurrency} looked up", float(gathered)),
        "norms and biases": ("read too", float(vectors)),
        "KV": (
            "windows read less; the new token's own entry is written, not read",
            float(total.kv_bytes - concurrency * context * paper.kv_bytes_per_position),
        ),
        "activations": ("larger than the cache", float(total.activation_bytes)),
    }
    known = sum(size for _, size in items.values())
    rest = total.num_bytes - paper.step_bytes(context, concurrency) - known
    items["other shapes"] = ("matrices that the closed form does not know", rest)
    return items
