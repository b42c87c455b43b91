"""`headrace bench`: measuring."""

from __future__ import annotations

import typer

from headrace.cli.bench_compare import compare

bench_app = typer.Typer(
    help="Measuring: speed next to its limit, and next to other engines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench_app.command("compare")(compare)
