"""`headrace lab`: experiments on one's own machine."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options as o
from headrace.cli.progress import StderrReporter
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.lab.experiment import Experiment
    from headrace.lab.progress import Report
    from headrace.lab.result import Result

lab_app = typer.Typer(
    help="Experiments that reproduce what is taught about inference, on your machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="An experiment, as `headrace lab list` names it.")
]
DEFAULT_OUT = Path("lab-results")


@lab_app.command("list")
def list_experiments(as_json: o.AsJson = False) -> None:
    """List the experiments, in the order to take them."""
    found = _all()
    if as_json:
        typer.echo(json.dumps([_facts(experiment) for experiment in found], ensure_ascii=False))
        return
    for experiment in found:
        time = f"{experiment.quick_s:.0f} s quick, {_long(experiment.full_s)} full"
        typer.echo(f"{experiment.name:12} {experiment.question}\n{'':12} {time}")


@lab_app.command()
def show(name: Name, as_json: o.AsJson = False) -> None:
    """Show what an experiment asks, what is taught about it, and what to change."""
    from headrace.lab.catalog import find

    experiment = find(name)
    if as_json:
        typer.echo(json.dumps(_facts(experiment), ensure_ascii=False))
        return
    typer.echo(f"{experiment.title}\n\nQuestion: {experiment.question}")
    typer.echo(f"What is taught: {experiment.claim}")
    runs_on = experiment.default_model or "models of its own"
    typer.echo(f"Runs on: {runs_on}{' (--model)' if experiment.default_model else ''}")
    typer.echo(f"Takes: {experiment.quick_s:.0f} s quick, {_long(experiment.full_s)} full")
    if experiment.faults:
        typer.echo(f"Its check must catch: {', '.join(experiment.faults)} (--inject)")
    for line in experiment.try_this:
        typer.echo(f"Try: {line}")


@lab_app.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An experiment, or all.", show_default=False)
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes: about a minute for most.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", show_default=False,
                     help="What to run it on (default: the experiment's, mostly smollm2-135m)."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Results go to DIR/NAME.")
    ] = DEFAULT_OUT,
    inject: Annotated[
        str | None,
        typer.Option("--inject", metavar="FAULT", show_default=False,
                     help="Plant a fault of `headrace verify`; the check must then fail."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", show_default=False,
                     help="English text (UTF-8) instead of the Jargon File."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of everything that is random.")] = 1,
    threads: o.Threads = None,
    offline: o.Offline = False,
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Run an experiment: predict, check, measure, and write a page of findings.

    DIR/NAME holds result.json, prediction.json, findings.md and the figures; an earlier result is
    kept as DIR/NAME.previous. Exit code 0: all checks held; 1: one failed and nothing was measured.
    """
    from headrace.engine.config import MAX_THREADS
    from headrace.lab.catalog import EXPERIMENTS, find
    from headrace.lab.lab import Settings
    from headrace.lab.runner import run as run_experiment

    need_lab_extra()
    if seed < 0:
        raise UsageError(f"--seed must not be negative, not {seed}.")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"--threads must be 1 … {MAX_THREADS:,}, not {threads}.")
    experiments = [find(n) for n in EXPERIMENTS] if name == "all" else [find(name)]
    if inject is not None and len(experiments) > 1:
        raise UsageError("--inject plants a fault for one experiment; name it instead of all.")
    settings = Settings(
        model=model, quick=quick, seed=seed, threads=threads, inject=inject, text=text,
        offline=offline or None,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # in order, as Ctrl-C: nothing is left
    results = []
    for experiment in experiments:
        if name == "all" and experiment.default_model is None:
            asked = replace(settings, model=None)
        else:
            asked = settings
        with ProgressLine() as line:
            result = run_experiment(
                experiment, asked, out, listener=line.show, reporter=StderrReporter()
            )
        results.append(result)
        if not as_json:
            _print(result, out / experiment.name)
    if as_json:
        data = [result.data for result in results]
        typer.echo(json.dumps(data if name == "all" else data[0], ensure_ascii=False))
    if not all(result.passed for result in results):
        raise typer.Exit(1)


@lab_app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where `lab run` wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False,
                     help="Default: DIR/report.html."),
    ] = None,
) -> None:  # fmt: skip
    """Join all results of a directory into one HTML page that needs nothing else."""
    from headrace.formats.cache_dirs import atomic_write
    from headrace.lab.report import report as make_report

    page = make_report(directory)
    target = output or directory / "report.html"
    try:
        with atomic_write(target) as file:
            file.write(page.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"The report cannot be written to {target}: {error.strerror}.") from None
    typer.echo(str(target))


def need_lab_extra() -> None:
    """Raises UsageError when the libraries of the lab are missing."""
    import importlib.util

    for library in ("torch", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            raise UsageError(f"The lab needs {library}: pip install 'headrace[lab]'.")


def _all() -> list[Experiment]:
    from headrace.lab.catalog import EXPERIMENTS, find

    return [find(name) for name in EXPERIMENTS]


def _facts(experiment: Experiment) -> dict[str, object]:
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "claim": experiment.claim,
        "quick_s": experiment.quick_s,
        "full_s": experiment.full_s,
        "default_model": experiment.default_model,
        "faults": list(experiment.faults),
        "try_this": list(experiment.try_this),
    }


def _long(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class ProgressLine:
    """Progress on stderr: a line that changes where a person watches, else one every few seconds.

    A context manager; the changing line is gone at its end.
    """

    EVERY_S = 2.0

    def __init__(self) -> None:
        from headrace.cli.live import LiveLine

        self._live = LiveLine(sys.stderr)
        self._terminal = sys.stderr.isatty()
        self._printed_s = float("-inf")

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self._live.clear()

    def show(self, report: Report) -> None:
        """One report of the lab."""
        import time

        minutes, seconds = divmod(round(report.left_s), 60)
        text = (
            f"{report.experiment} {100 * report.share:3.0f} %  {minutes}:{seconds:02d} left  "
            f"{report.text}"
        )
        if self._terminal:
            self._live.show(text)
        elif time.monotonic() - self._printed_s >= self.EVERY_S:
            self._printed_s = time.monotonic()
            print(f"headrace: {text}", file=sys.stderr, flush=True)


def _print(result: Result, directory: Path) -> None:
    """The verdicts, in the space of a screen; the page has the rest."""
    from headrace.lab.findings_page import checks_title, interval, number

    data = result.data
    typer.echo(f"{data['title']}  ({data['seconds']:.0f} s)")
    for check in data["checks"]:
        word = "holds " if check["passed"] else "FAILED"
        typer.echo(f"  {word}  {check['name']}: {check['detail']}")
    if data["inject"] or not data["passed"]:
        typer.echo(f"  {checks_title(data)}.")
    for p in data["predictions"] if data["passed"] else []:
        sign = {"at most": "≤ ", "at least": "≥ "}.get(p["kind"], "")
        typer.echo(
            f"  {p['verdict']:12} {p['what']}: predicted {sign}{number(p['value'])} {p['unit']}, "
            f"measured {interval(p['measured'])}"
        )
    for c in data["conclusions"]:
        typer.echo(f"  {'· ' if c['resolved'] else '· not resolved: '}{c['text']}")
    typer.echo(f"  {directory / 'findings.md'}\n")
