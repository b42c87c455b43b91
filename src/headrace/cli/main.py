"""The command line's door: the app, one small file per command, and what errors become.

Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 an error about a model, a file
or a request, 2 wrong usage, 130 interrupted. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import io
import os
import sys

import typer

from headrace import __version__
from headrace.cli.bench import bench_app
from headrace.cli.chat import chat
from headrace.cli.env import env
from headrace.cli.generate import generate
from headrace.cli.lab import lab_app
from headrace.cli.models import models_app
from headrace.cli.perplexity import perplexity
from headrace.cli.plan import plan
from headrace.cli.run_batch import run_batch
from headrace.cli.serve import serve
from headrace.cli.ui import ui
from headrace.cli.verify import verify
from headrace.errors import HeadraceError, UsageError

app = typer.Typer(
    name="headrace",
    help="LLM inference that proves itself and knows its limit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """LLM inference that proves itself and knows its limit."""


app.command()(generate)
app.command()(chat)
app.command()(perplexity)
app.command()(serve)
app.command()(ui)
app.command()(run_batch)
app.command()(verify)
app.command()(plan)
app.command()(env)
app.add_typer(bench_app, name="bench")
app.add_typer(lab_app, name="lab")
app.add_typer(models_app, name="models")


def run(arguments: list[str]) -> int:
    """Runs one command line; returns the exit code and prints one sentence per error."""
    _prepare_streams()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader left (`| head`): not an error
        _forget_stdout()
        return 0
    except OSError as error:  # mostly stdout itself: a full disk
        _forget_stdout()
        where = f"{error.filename}: " if error.filename else ""
        print(f"headrace: {where}{error.strerror or error}", file=sys.stderr)
    except MemoryError:
        print("headrace: there is not enough memory for this", file=sys.stderr)
    return 1


def _dispatch(arguments: list[str]) -> int:
    try:
        app(arguments)
    except SystemExit as end:  # how typer reports usage errors, interrupts and plain success
        if isinstance(end.__context__, BrokenPipeError):  # which typer turns into a plain 1
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except HeadraceError as error:
        sys.stdout.flush()
        print(f"headrace: {_harmless(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _harmless(text: str) -> str:
    """Names from files and arguments may hold what moves a terminal's cursor, or worse."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def _prepare_streams() -> None:
    """A stream that the caller closed becomes the null device, and what a stream's encoding cannot
    write becomes a question mark."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (stays open)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Keeps the interpreter from flushing into a stdout that takes nothing, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point of the `headrace` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
