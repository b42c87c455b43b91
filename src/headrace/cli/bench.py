"""`headrace bench`: measuring; one file per command."""

from __future__ import annotations

import typer

from headrace.cli.bench_compare import compare
from headrace.cli.bench_machine import bench_machine
from headrace.cli.bench_run import bench_run
from headrace.cli.bench_serve import bench_serve

bench_app = typer.Typer(
    help="Measuring: speed next to its limit, next to other engines, and of servers under load.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench_app.command("machine")(bench_machine)
bench_app.command("run")(bench_run)
bench_app.command("serve")(bench_serve)
bench_app.command("compare")(compare)
