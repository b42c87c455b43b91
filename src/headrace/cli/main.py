"""The command line's door: the app, one small file per command, and what errors become.

Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 an error about a model, a file
or a request, 2 wrong usage, 130 interrupted. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import os
import sys

import typer

from headrace import __version__
from headrace.cli.chat import chat
from headrace.cli.env import env
from headrace.cli.generate import generate
from headrace.cli.models import models_app
from headrace.cli.perplexity import perplexity
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
app.command()(verify)
app.command()(env)
app.add_typer(models_app, name="models")


def run(arguments: list[str]) -> int:
    """Runs one command line; returns the exit code and prints one sentence per error."""
    try:
        app(arguments)
    except SystemExit as end:  # how typer reports usage errors, interrupts and plain success
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except HeadraceError as error:
        sys.stdout.flush()
        print(f"headrace: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        # The reader left (`| head`): not an error; keep the interpreter from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main() -> None:
    """Entry point of the `headrace` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
