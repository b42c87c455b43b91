"""The answer as people read it: text for a terminal, Markdown, CSV.

On a terminal, columns that do not fit its width are left away, the least important first.
"""

from __future__ import annotations

import csv
import io
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.limits.plan.advice import Stage
from headrace.limits.plan.answer import BudgetTable
from headrace.limits.plan.formats import main_format
from headrace.limits.plan.hardware import Hardware
from headrace.limits.plan.lines import Section
from headrace.limits.plan.row import Row
from headrace.limits.plan.words import (
    DASH,
    figures,
    shown_count,
    shown_gb,
    shown_rate,
    shown_s,
    shown_usd,
)

#: What styles a text: its name and the text → the text with a terminal's codes, or as it is.
Style = Callable[[str, str], str]


def plain(_: str, text: str) -> str:
    """No style."""
    return text


@dataclass(frozen=True, slots=True)
class Column:
    """keep: columns of lower numbers go first where there is no room."""

    head: str
    cell: Callable[[Row], str]
    keep: int = 9
    left: bool = False
    style: Callable[[Row], str] = lambda _: ""


def memory_columns() -> tuple[Column, ...]:
    """Memory in GB, and what it holds."""
    return (
        Column("hardware", lambda r: r.hardware.name, left=True),
        Column("at once", lambda r: f"{r.concurrency:,}"),
        Column("weights", lambda r: shown_gb(r.memory.weights)),
        Column("KV", lambda r: shown_gb(r.memory.kv)),
        Column("activ.", lambda r: shown_gb(r.memory.activations), keep=3),
        Column("other", lambda r: shown_gb(r.memory.overhead), keep=2),
        Column("total", lambda r: shown_gb(r.memory.total)),
        Column("of", lambda r: shown_gb(r.hardware.memory_bytes), keep=1),
        Column("fits", _fits, left=True, style=_mark_fit),
        Column("most", lambda r: shown_count(r.max_concurrency), keep=8),
        Column("longest", lambda r: shown_count(r.max_context), keep=7),
    )  # fmt: skip


def time_columns(table: BudgetTable) -> tuple[Column, ...]:
    """Times, rates, cost, and what bounds them."""
    several = any(r.concurrency > 1 for r in table.rows)
    columns = [
        Column("hardware", lambda r: r.hardware.name, left=True),
        Column("at once", lambda r: f"{r.concurrency:,}"),
        Column("TTFT", lambda r: shown_s(None if r.times is None else r.times.ttft_s)),
    ]
    if several:
        keep = 4 if table.question.ttft_s is None else 9
        columns.append(Column("joining", _joining, keep=keep))
    columns += [
        Column("TPOT", lambda r: shown_s(None if r.times is None else r.times.tpot_s)),
        Column("tok/s", lambda r: shown_rate(r.tok_per_s), keep=8 if several else 2),
        Column("together", lambda r: shown_rate(r.total_tok_per_s)),
    ]
    if table.question.output is not None:
        columns.append(Column("sustained", lambda r: shown_rate(r.sustained_tok_per_s), keep=5))
    if any(r.hardware.price_usd_per_hour is not None for r in table.rows):
        columns.append(Column("$/Mtok", lambda r: shown_usd(_usd(r))))
    if any(r.meets is not None for r in table.rows):
        columns.append(
            Column(
                "in time", _in_time, left=True, keep=8, style=lambda r: "good" if r.meets else "bad"
            )
        )
    columns.append(Column("bound by", _bound_by, left=True, keep=6))
    return tuple(columns)  # fmt: skip


def _joining(row: Row) -> str:
    return shown_s(None if row.times is None else row.times.joining_s)


def _usd(row: Row) -> float | None:
    return row.sustained_usd_per_mtok if row.output is not None else row.usd_per_mtok


def _mark_fit(row: Row) -> str:
    return "" if row.fits is None else "good" if row.fits else "bad"


def _fits(row: Row) -> str:
    if row.fits is None:
        return DASH
    free = row.free_bytes or 0
    return f"yes +{shown_gb(free)}" if row.fits else f"no  −{shown_gb(-free)}"


def _in_time(row: Row) -> str:
    if row.missed is None:
        return DASH
    return f"no: {' '.join(row.missed)}" if row.missed else "yes"


def _bound_by(row: Row) -> str:
    if row.times is None:
        return DASH
    prefill = DASH if row.times.prefill is None else row.times.prefill.word
    return f"{prefill}, {row.times.decode.word}"


# ---- a terminal ---------------------------------------------------------------------------------


def text(table: BudgetTable, width: int, style: Style = plain) -> str:
    """The whole answer, at most `width` columns wide where its words allow."""
    lines = [*_head(table, width, style), ""]
    shown, heads = _table("Memory, GB", memory_columns(), table.rows, width, style)
    lines += [*shown, *_wrapped(memory_legend(table, heads), width, style), ""]
    kind = "Times" if table.estimated else "Times at best"
    shown, heads = _table(kind, time_columns(table), table.rows, width, style)
    lines += [*shown, *_wrapped(time_legend(table, heads), width, style), ""]
    lines += _recommendation(table, width, style)
    return "\n".join(lines)


def _head(table: BudgetTable, width: int, style: Style) -> Iterator[str]:
    q = table.question
    yield style("title", q.model.name)
    yield from textwrap.wrap(" · ".join(facts(table)), width)
    for hardware in q.hardware:
        yield from textwrap.wrap(
            f"{hardware.name}: {hardware_facts(hardware)}", width, subsequent_indent="  "
        )


def facts(table: BudgetTable) -> list[str]:
    """The model and the load in short."""
    q, program = table.question, table.question.model.program
    config = program.config
    numbers = sum(w.rows * w.columns for w in program.weights.values())
    kv = sum(g.bytes_per_position(q.kv_format) for g in program.kv_groups)
    windows = sorted({w for w in config.windows if w is not None})
    words = [
        f"{figures(numbers / 1e9)} billion parameters",
        f"{config.num_layers} layers",
        f"{config.num_heads} query and {config.num_kv_heads} KV heads",
        f"weights {main_format(program).name.lower()}",
        f"KV {q.kv_format.value}, {kv:,} bytes per token",
    ]
    if windows:
        words.append(f"windows of {', '.join(map(str, windows))}")
    words.append(f"context {q.context:,}")
    words.append(f"prompts of {q.prompt:,}" + (f", outputs of {q.output:,}" if q.output else ""))
    return words


def hardware_facts(hardware: Hardware) -> str:
    """Title, memory, bandwidth, peaks, price."""
    gb = hardware.memory_bytes
    words = [hardware.title, f"{shown_gb(gb)} GB" if gb else f"memory {DASH}"]
    if hardware.read_bytes_per_s:
        words.append(f"{figures(hardware.read_bytes_per_s / 1e9)} GB/s")
    peaks = (
        ("int8", hardware.int8_ops_per_s),
        ("fp8", hardware.fp8_ops_per_s),
        ("bf16", hardware.bf16_ops_per_s),
    )
    shown = [f"{name} {figures(rate / 1e12)}" for name, rate in peaks if rate]
    if not shown and hardware.f32_ops_per_s:
        shown = [f"f32 {figures(hardware.f32_ops_per_s / 1e12)}"]
    words.append(f"{', '.join(shown)} Top/s" if shown else f"peaks {DASH}")
    if hardware.price_usd_per_hour:
        words.append(f"${hardware.price_usd_per_hour:.2f} an hour")
    return ", ".join(words)


def memory_legend(table: BudgetTable, heads: Collection[str]) -> str:
    """What the columns that are shown mean."""
    q = table.question
    longest = f"context at which this many fit, at most the model's {q.model.program.max_context:,}"
    words = {"most": f"requests of {q.context:,} tokens that fit", "longest": longest}
    return _legend(words, heads)


def time_legend(table: BudgetTable, heads: Collection[str]) -> str:
    """As memory_legend, of the times."""
    q = table.question
    others = any(not h.measured for h in q.hardware)
    first = "Nothing can be faster."
    if table.estimated:
        first = "Estimates from this machine's calibration"
        first += "; of other hardware, what nothing can beat." if others else "."
    several = any(r.concurrency > 1 for r in table.rows)
    words = {
        "TTFT": "mean over requests that arrive at once" if several else "time to first token",
        "joining": "of one that comes while the others generate",
        "TPOT": f"per token, {'over the output' if q.output else 'where the context is full'}",
        "together": "tok/s of all",
        "sustained": "the same with their prompts",
        "$/Mtok": "with prompts" if q.output else "generation alone",
        "bound by": f"prompts, generation{' (of the bound)' if table.estimated else ''}",
    }
    return f"{first} {_legend(words, heads)}"


def _legend(words: Mapping[str, str], heads: Collection[str]) -> str:
    return " ".join(f"{head}: {what}." for head, what in words.items() if head in heads)


def _recommendation(table: BudgetTable, width: int, style: Style) -> Iterator[str]:
    found = table.recommendation
    yield style("title", "Recommendation")
    for verdict in found.verdicts:
        yield from textwrap.wrap(verdict, width, subsequent_indent="  ")
    if found.choice:
        chosen = textwrap.wrap(f"→ {found.choice}", width, subsequent_indent="  ")
        yield from (style("strong", line) for line in chosen)
    if found.focus is not None and found.steps:
        yield ""
        focus = found.focus
        yield style(
            "title", f"What to do with {focus.hardware.name} at {focus.concurrency} at once"
        )
        yield from _wrapped(found.note, width, style)
        yield from _steps(table, width, style)
    if table.engines:
        yield ""
        yield style("title", "Engines")
        names = max(len(e.engine) for e in table.engines)
        for engine in table.engines:
            mark = "✓" if engine.suits else "✗"
            yield from textwrap.wrap(
                f"{mark} {engine.engine:<{names}}  {engine.why}",
                width,
                subsequent_indent=" " * (names + 4),
            )
    if table.serve is not None:
        yield ""
        yield style("title", "Start it")
        yield from _command(table.serve.command, width)
        for note in table.serve.notes:
            yield from _wrapped(note, width, style)


def _command(words: Sequence[str], width: int) -> Iterator[str]:
    """A command for a shell, over several lines where it is long. An option stays by its value."""
    line, pieces = "", shlex.join(words).replace(" --", "\n--").split("\n")
    for piece in pieces:
        if line and len(line) + len(piece) + 3 > width:
            yield f"{line} \\"
            line = f"    {piece}"
        else:
            line = f"{line} {piece}" if line else piece
    yield line


def _steps(table: BudgetTable, width: int, style: Style) -> Iterator[str]:
    for number, stage in enumerate(Stage, 1):
        steps = [s for s in table.recommendation.steps if s.stage is stage]
        if not steps:
            continue
        yield style("strong", f"{number}. {stage.value}")
        for step in steps:
            mark = "✓" if step.worth else "·"
            yield from textwrap.wrap(
                f"{mark} {step.title}: {step.text}",
                width,
                initial_indent="   ",
                subsequent_indent="     ",
            )


def _wrapped(sentence: str, width: int, style: Style) -> Iterator[str]:
    for line in textwrap.wrap(sentence, width):
        yield style("quiet", line)


def _table(
    title: str, columns: Sequence[Column], rows: Sequence[Row], width: int, style: Style
) -> tuple[list[str], set[str]]:
    """Lines, and the heads of the columns that found room. Where they do not all, the name of a
    hardware with several rows goes on a line of its own; then columns go."""
    cells = {c.head: [c.head, *(c.cell(row) for row in rows)] for c in columns}
    sizes = {head: max(map(len, column)) for head, column in cells.items()}

    def room(kept: Sequence[Column]) -> int:
        return width + 2 - sum(sizes[c.head] + 2 for c in kept)

    name, *kept = columns
    hardware = [r.hardware.name for r in rows]
    grouped = room(columns) < 0 and len(hardware) >= 2 * len(set(hardware))
    if not grouped:
        kept = [name, *kept]
    while room(kept) < 0 and min(c.keep for c in kept) < 9:
        kept.remove(min(kept, key=lambda c: c.keep))
    lines = [style("title", title)]
    for i in range(len(rows) + 1):
        again = i > 1 and hardware[i - 1] == hardware[i - 2]
        if grouped and i and not again:
            lines.append(style("strong", hardware[i - 1]))
        parts = []
        for column in kept:
            cell, size = cells[column.head][i], sizes[column.head]
            if column is name and again:
                cell = ""  # it stands above
            padded = cell.ljust(size) if column.left else cell.rjust(size)
            kind = "head" if i == 0 else column.style(rows[i - 1])
            parts.append(style(kind, padded) if kind else padded)
        lines.append("  ".join(parts).rstrip())
    return lines, {c.head for c in kept}


def explained(sections: Sequence[Section], width: int, style: Style = plain) -> str:
    """`--why`: every line as what = formula = numbers = result."""
    lines: list[str] = []
    for section in sections:
        lines += ["", style("title", section.title)]
        for line in section.lines:
            parts = [p for p in (line.formula, line.numbers) if p]
            indent = " " * (len(line.what) - len(line.what.lstrip()) + 4)
            whole = " = ".join([line.what, *parts, line.result])
            lines += textwrap.wrap(whole, width, subsequent_indent=indent)
    return "\n".join(lines)


# ---- files --------------------------------------------------------------------------------------


def markdown(table: BudgetTable) -> str:
    """Both tables, the recommendation and the command."""
    lines = [f"# {table.question.model.name}", "", " · ".join(facts(table)), ""]
    lines += [f"- {h.name}: {hardware_facts(h)}" for h in table.question.hardware]
    for title, columns, legend in (
        ("Memory, GB", memory_columns(), memory_legend),
        ("Times", time_columns(table), time_legend),
    ):
        lines += ["", f"## {title}", ""]
        lines.append("| " + " | ".join(c.head for c in columns) + " |")
        lines.append("|" + "|".join("---" if c.left else "---:" for c in columns) + "|")
        lines += ["| " + " | ".join(c.cell(r) for c in columns) + " |" for r in table.rows]
        lines += ["", legend(table, {c.head for c in columns})]
    found = table.recommendation
    lines += ["", "## Recommendation", "", *(f"- {v}" for v in found.verdicts)]
    if found.choice:
        lines += ["", f"**{found.choice}**"]
    if found.note:
        lines += ["", found.note]
    for number, stage in enumerate(Stage, 1):
        lines += ["", f"{number}. {stage.value}"]
        lines += [
            f"    - {'' if s.worth else '(not now) '}{s.title}: {s.text}"
            for s in found.steps
            if s.stage is stage
        ]
    if table.engines:
        lines += ["", "## Engines", ""]
        lines += [
            f"- {'' if e.suits else '(does not suit) '}[{e.engine}]({e.url}): {e.why}"
            if e.url
            else f"- {'' if e.suits else '(does not suit) '}{e.engine}: {e.why}"
            for e in table.engines
        ]
    if table.serve is not None:
        lines += ["", "## Start it", "", "```bash", table.serve.text, "```"]
        lines += ["", *(f"{note}  " for note in table.serve.notes)]
    return "\n".join(lines)


def comma_separated(table: BudgetTable) -> str:
    """The rows as CSV: JSON's names, memory as columns of its own; empty where not known."""
    rows = []
    for row in table.rows:
        values = row.to_dict()
        memory = values.pop("memory_bytes")
        head = {"hardware": values.pop("hardware"), "concurrency": values.pop("concurrency")}
        rows.append(head | {f"{name}_bytes": size for name, size in memory.items()} | values)
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
