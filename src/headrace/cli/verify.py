"""`headrace verify MODEL`: the ladder of equivalences on the user's model and machine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options as o
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.verify.faults import Fault
    from headrace.verify.ladder import Report
    from headrace.verify.result import RungResult
    from headrace.verify.subject import Subject


#: What MODEL itself is quantised to, to be its own draft model.
DRAFT_QUANTIZE = "q4_0"


def _list_faults(wanted: bool) -> None:
    if wanted:
        from headrace.verify.faults import FAULTS

        for fault in FAULTS.values():
            typer.echo(f"{fault.name:18} {fault.symptom}")
        raise typer.Exit


def verify(
    model: o.Model,
    inject: Annotated[
        str | None,
        typer.Option("--inject", metavar="FAULT", show_default=False,
                     help="Plant a fault first; the ladder must then fail."),
    ] = None,
    list_faults: Annotated[
        bool,
        typer.Option("--list-faults", callback=_list_faults, is_eager=True,
                     help="Print the faults and exit."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A text of 600 tokens instead of 1160.")
    ] = False,
    reference: Annotated[
        bool | None,
        typer.Option("--reference/--no-reference", show_default=False,
                     help="Also compare with torch (default: when torch is installed)."),
    ] = None,
    kv_cache_dtype: o.KVFormat = "bf16",
    threads: o.Threads = None,
    quantize: o.Quantize = None,
    draft_model: Annotated[
        str | None,
        typer.Option("--draft-model", "-md", show_default=False,
                     help="Who guesses in the rung of speculation (default: MODEL in q4_0)."),
    ] = None,
    draft_quantize: o.DraftQuantize = None,
    block_size: o.BlockSize = 16,
    isa: Annotated[
        str | None,
        typer.Option(help="Instruction-set level (default: HEADRACE_ISA, else the best).",
                     show_default=False),
    ] = None,
    offline: o.Offline = False,
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Check that every way to compute gives the same bits, and that they are the right ones.

    Exit code 0: all rungs that ran passed; 1: one failed; 2: wrong usage.
    """
    from headrace.cli.progress import StderrReporter
    from headrace.engine.model import open_model, vocabulary_of
    from headrace.engine.speculation.vocabularies import check_vocabularies
    from headrace.ops.kv import KVFormat
    from headrace.verify.faults import NO_FAULT, find_fault
    from headrace.verify.ladder import has_reference, run_ladder
    from headrace.verify.subject import Subject
    from headrace.verify.workload import LONG, QUICK

    formats = [f.value for f in KVFormat]
    if kv_cache_dtype not in formats:
        raise UsageError(f"--kv-cache-dtype must be one of {', '.join(formats)}.")
    if reference and not has_reference():
        raise UsageError(
            "--reference needs torch, which is not installed; install it with: "
            "pip install 'headrace[torch]'"
        )
    opened = open_model(
        model,
        quantize=quantize,
        num_threads=threads,
        offline=offline or None,
        progress=StderrReporter(quiet=quantize is None),
    )
    fault = NO_FAULT if inject is None else find_fault(inject, opened.program)
    if fault.needs_reference and not (has_reference() if reference is None else reference):
        raise UsageError(
            f"The fault {fault.name} is in every native path alike, so only the comparison with "
            f"torch can show it; install it with: pip install 'headrace[torch]'"
        )
    draft = open_model(
        draft_model or model,
        quantize=draft_quantize or (None if draft_model else DRAFT_QUANTIZE),
        num_threads=threads,
        offline=offline or None,
        progress=StderrReporter(quiet=True),
    )
    check_vocabularies(opened.tokenizer, draft.tokenizer, model, draft.name)
    subject = Subject(
        opened.program,
        num_ids=vocabulary_of(opened).num_ids,
        encode=lambda text: opened.tokenizer.encode(text, add_special=False),
        kv_format=KVFormat(kv_cache_dtype),
        num_threads=threads,
        isa=isa,
        fault=fault,
        block_size=block_size,
        length=QUICK if quick else LONG,
        name=model,
        draft=draft.program,
    )
    subject.check()
    printer = _Printer(table=not as_json)
    report = run_ladder(
        subject, reference=reference, on_start=printer.start, on_result=printer.result
    )
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _print_end(report, subject, fault)
    if not report.passed:
        raise typer.Exit(1)


class _Printer:
    """The table on stdout, row by row; which rung runs on stderr, where a person watches."""

    def __init__(self, *, table: bool) -> None:
        self._table = table
        self._live = sys.stderr.isatty()
        if table:
            typer.echo(f"{'rung':28}{'max |Δ|':>10}{'bound':>10}{'events':>8}  {'s':>5}")

    def start(self, name: str) -> None:
        if self._live:
            print(f"\r\x1b[2K… {name}", end="", file=sys.stderr, flush=True)

    def result(self, rung: RungResult) -> None:
        if self._live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
        if self._table:
            typer.echo(table_row(rung))


def table_row(rung: RungResult) -> str:
    """One line of the table."""
    bound = "exact" if rung.exact else f"{rung.bound:.3g}"
    verdict = "ok" if rung.passed else "FAILED"
    return (
        f"{rung.name:28}{rung.max_abs_error:>10.3g}{bound:>10}{rung.events:>8}  "
        f"{rung.seconds:>5.1f}  {verdict:8}{rung.detail}"
    )


def _print_end(report: Report, subject: Subject, fault: Fault) -> None:
    from headrace.verify.faults import NO_FAULT
    from headrace.verify.ladder import SYMPTOMS

    for name, reason in report.not_run.items():
        typer.echo(f"{name:28}not run: {reason}")
    c = report.conditions
    typer.echo(
        f"{subject.name} ({', '.join(c['weight_formats'])}), KV {c['kv_format']}, {c['isa']}, "
        f"{c['threads']} threads, {c['text_tokens']} tokens, {c['numerics_id']}"
    )
    skipped = f", {len(report.not_run)} not run" if report.not_run else ""
    failed = f"{len(report.failed)} of {len(report.rungs)} rungs failed{skipped}"
    if fault is not NO_FAULT:
        caught = ", ".join(rung.name for rung in report.failed) or "no rung"
        typer.echo(f"planted fault {fault.name} caught by: {caught} ({failed}, as they must)")
        return
    for rung in report.failed:
        typer.echo(f"{rung.name}: {SYMPTOMS.get(rung.name, '')}")
    passed = f"{len(report.rungs)} of {len(report.rungs)} rungs{skipped}"
    typer.echo(f"passed: {passed}" if report.passed else f"FAILED: {failed}")
