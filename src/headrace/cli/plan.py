"""`headrace plan`: what a model needs and reaches on some hardware, before anything is bought."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options as o
from headrace.cli.live import LiveLine

if TYPE_CHECKING:
    from headrace.limits.estimate import Calibration
    from headrace.limits.plan import Question


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file (its header is enough), a config.json or its directory, an alias, or "
            "a known name (headrace plan --list).",
            show_default=False,
        ),
    ] = "",
    hardware: Annotated[
        str,
        typer.Option(help="local (this machine, measured), known names or a .toml file; commas."),
    ] = "local",
    ctx: Annotated[
        str | None,
        typer.Option("--ctx", "-c", show_default=False,
                     help="Positions of each request, as 32k (default: prompt + output, else the "
                          "model's, at most 8k)."),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at once; commas.")] = "1",
    prompt: Annotated[
        str | None,
        typer.Option(help="Tokens of a prompt (default: the rest of the context).",
                     show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", show_default=False,
                     help="Tokens of an answer (default: generation at the full context)."),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(help="Weights in another format: q4_k, q8_0, bf16, …; fp8, int8, int4, mxfp4 "
                          "or nvfp4 of other engines.", show_default=False),
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option("--kv-cache-dtype", "-ctk", help="bf16, f16, f32 or fp8.")
    ] = "bf16",
    ttft: Annotated[
        str | None,
        typer.Option(
            help="Wanted time to first token, as 0.5s; a bare number is seconds.",
            show_default=False,
        ),
    ] = None,
    tpot: Annotated[
        str | None,
        typer.Option(
            help="Wanted time per token, as 50ms; a bare number is seconds.",
            show_default=False,
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(help="Dollars per hour, of every hardware asked for.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", show_default=False,
                     help="Change a size of the model (num_kv_heads=8), a number of the hardware "
                          "(memory_bytes=24GB) or step_tokens, block_size; may be repeated."),
    ] = None,
    formula: Annotated[
        str,
        typer.Option(help="program: sums the model's own ops; paper: the closed forms."),
    ] = "program",
    why: Annotated[
        bool, typer.Option("--why", help="Show every formula with its numbers.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure what this machine's kernels reach (about a "
                     "minute) and keep it: its times are estimates from then on."),
    ] = False,
    bounds: Annotated[
        bool,
        typer.Option("--bounds", help="Times of this machine as bounds, though it was calibrated."),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List the known models and hardware, and their sources.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", "-o", help="table, md, csv or json.")
    ] = "table",
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Plan a model on hardware: memory, times, cost, what bounds them, and what to do about it.

    Needs no weights. Times are bounds, which nothing beats; of this machine estimates, once it was
    calibrated.
    """
    from headrace.errors import UsageError
    from headrace.limits.plan import ask, report
    from headrace.limits.plan import plan as answer
    from headrace.limits.plan.why import why as explain

    form = "json" if as_json else form
    if form not in o.OUTPUTS:
        raise UsageError(f"-o must be one of {', '.join(o.OUTPUTS)}, not {form!r}.")
    if listed:
        _list(form)
        return
    if not model:
        raise UsageError(
            "Which MODEL? A GGUF file, a config.json, or a name of: headrace plan --list"
        )
    if calibrate and bounds:
        raise UsageError("--calibrate makes estimates and --bounds asks for none: take one.")
    question = ask(
        model,
        hardware=hardware,
        context=ctx,
        concurrency=concurrency,
        prompt=prompt,
        output=output,
        quant=quant,
        kv_cache_dtype=kv_cache_dtype,
        ttft=ttft,
        tpot=tpot,
        price=price,
        settings=setting or (),
        formula=formula,
    )
    if not bounds:
        question = replace(question, calibration=_calibration(question, measure=calibrate))
    table = answer(question)
    sections = explain(question, table.rows) if why else ()
    if form == "json":
        values = table.to_dict()
        if why:
            values["why"] = [
                {"title": s.title, "lines": [line.to_dict() for line in s.lines]} for s in sections
            ]
        typer.echo(json.dumps(values, ensure_ascii=False, indent=2))
    elif form == "csv":
        typer.echo(report.comma_separated(table))
    elif form == "md":
        typer.echo(report.markdown(table))
        if why:
            typer.echo(f"\n## Why\n\n```\n{report.explained(sections, 100).strip()}\n```")
    else:
        width = max(shutil.get_terminal_size((100, 24)).columns, 60)
        style = _styled if _colours() else report.plain
        typer.echo(report.text(table, width, style))
        if why:
            typer.echo(report.explained(sections, width, style))


def _calibration(question: Question, *, measure: bool) -> Calibration | None:
    """That of this machine if it is asked about: measured now and kept, or kept before."""
    from headrace.errors import UsageError

    local = next((h.rates for h in question.hardware if h.rates is not None), None)
    if local is None:
        if measure:
            raise UsageError("--calibrate measures this machine: add local to --hardware.")
        return None
    from headrace.bench.host import busy_cpu_s, cpu_name
    from headrace.limits.calibrate import Host, calibrate
    from headrace.limits.calibrations import find_calibration, save_calibration

    if not measure:
        return find_calibration(cpu_name(), local.num_threads, local.isa)
    with LiveLine(sys.stderr) as line:
        found = calibrate(
            Host(cpu_name(), busy_cpu_s),
            notice=lambda text, done: line.show(f"{text} ({done:.0%})"),
        )
    save_calibration(found)
    return found


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _styled(kind: str, text: str) -> str:
    """Colour only repeats what words say."""
    match kind:
        case "title":
            return typer.style(text, bold=True, fg=typer.colors.CYAN)
        case "strong":
            return typer.style(text, bold=True)
        case "head" | "quiet":
            return typer.style(text, dim=True)
        case "good":
            return typer.style(text, fg=typer.colors.GREEN)
        case "bad":
            return typer.style(text, fg=typer.colors.RED, bold=True)
    return text


def _list(form: str) -> None:
    """Known models and hardware with the pages of their numbers."""
    from headrace.limits.plan.builtin import built_in_models
    from headrace.limits.plan.hardware import known_hardware
    from headrace.limits.plan.report import hardware_facts

    models, hardware = built_in_models().values(), known_hardware().values()
    if form == "json":
        values = {
            "models": [
                {"name": m.name, "title": m.title, "url": m.url, "date": m.read} for m in models
            ],
            "hardware": [
                {
                    "name": h.name,
                    "title": h.title,
                    "kind": h.kind,
                    "numbers": {
                        name: {
                            "value": getattr(h, name),
                            "url": source.url,
                            "date": str(source.date or ""),
                            "quote": source.quote,
                            "how": source.how,
                        }
                        for name, source in h.sources.items()
                    },
                }
                for h in hardware
            ],
        }
        typer.echo(json.dumps(values, ensure_ascii=False, indent=2))
        return
    names = [m.name for m in models] + [h.name for h in hardware]
    width = max(map(len, names))
    typer.echo("Models")
    for m in models:
        typer.echo(f"  {m.name:<{width}}  {m.title}")
    typer.echo("\nHardware (-o json has the page, day and words of every number)")
    typer.echo(f"  {'local':<{width}}  this machine, probed when a plan asks for it; the default")
    for h in hardware:
        typer.echo(f"  {h.name:<{width}}  {hardware_facts(h)}")
    typer.echo(f"  {'FILE.toml':<{width}}  machines of your own")
