"""`headrace bench machine`: what this machine can do at most, the roof over every other figure."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options as o
from headrace.cli.live import LiveLine

if TYPE_CHECKING:
    from headrace.limits.survey import Survey


def bench_machine(
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", show_default=False,
                     help="Measure 1 … N threads (default: all usable CPUs)."),
    ] = None,
    isa: Annotated[
        str | None,
        typer.Option(help="Only this instruction-set level (default: all of this CPU).",
                     show_default=False),
    ] = None,
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Measure read bandwidth and peak int8, bf16 and f32 rates of this machine, in under 10 s.

    Per number of threads and instruction-set level. A multiply-add counts as two operations.
    """
    from headrace.bench.conditions import machine_conditions
    from headrace.limits.survey import survey

    with LiveLine(sys.stderr) as line:
        result = survey(
            threads,
            None if isa is None else [isa],
            on_step=lambda done, of: line.show(f"probing the machine: {done} of {of}"),
        )
    conditions = machine_conditions()
    if as_json:
        values = {"conditions": conditions} | result.to_dict()
        typer.echo(json.dumps(values, ensure_ascii=False, indent=2))
        return
    for note in result.notes:
        print(f"headrace: {note}", file=sys.stderr)
    typer.echo(
        f"{conditions['cpu']}, {conditions['cpus']} CPUs, last-level cache "
        f"{result.llc_bytes / 2**20:.0f} MiB, load {conditions['load_average_1min']}"
    )
    typer.echo("\n".join(table(result)))


def table(survey: Survey) -> list[str]:
    """Lines: bandwidth and peaks, a column per level and number format, a row per thread count."""
    formats = ("int8", "bf16", "f32")
    head = f"{'':8}{'read':>8}" + "".join(f" │{isa:^{8 * 3}}" for isa in survey.isas)
    units = f"{'threads':8}{'GB/s':>8}" + "".join(
        " │" + "".join(f"{name:>8}" for name in formats) for _ in survey.isas
    )
    lines = [head, units + "  Gop/s"]
    for count in survey.thread_counts:
        rows = [survey.row(isa, count).to_dict() for isa in survey.isas]
        line = f"{count:<8}{rows[0]['read_gb_per_s']:>8.1f}"
        for row in rows:
            line += " │" + "".join(f"{row[f'{name}_gop_per_s']:>8.0f}" for name in formats)
        lines.append(line)
    return lines
