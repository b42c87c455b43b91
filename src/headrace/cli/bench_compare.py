"""`headrace bench compare MODEL --with …`: Headrace and other engines in one interleaved run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli import options as o
from headrace.cli.live import LiveLine
from headrace.cli.progress import StderrReporter
from headrace.errors import UsageError


def compare(
    model: o.Model,
    peers: Annotated[
        str, typer.Option("--with", metavar="PEER[,PEER]", help="Engines to compare with.")
    ] = "llama-cpp-python",
    prompt: Annotated[
        int, typer.Option("--num-prompt", "-p", help="Tokens of the prompt test; 0 = none.")
    ] = 512,
    generate: Annotated[
        int, typer.Option("--num-generate", "-n", help="Tokens to generate.")
    ] = 64,
    depth: Annotated[
        int, typer.Option("--depth", "-d", help="Tokens in the cache before generation.")
    ] = 0,
    sequences: Annotated[
        str, typer.Option("--num-parallel", "-npl", help="Batch sizes; 1 = prompt and generation.")
    ] = "1,32",
    batch_prompt: Annotated[
        int, typer.Option("--num-batch-prompt", "-npp",
                          help="Prompt tokens of each sequence of a batch.")
    ] = 128,
    threads: o.Threads = None,
    repetitions: Annotated[
        int, typer.Option("--repetitions", "-r", help="Interleaved repetitions.")
    ] = 3,
    output: o.Output = "table",
    offline: o.Offline = False,
) -> None:  # fmt: skip
    """Compare speed with other engines: same model, tokens and threads, measured in turns.

    Every engine runs in a process of its own and only when it is installed; otherwise the command
    that installs it is printed.
    """
    from headrace.bench.peers.catalog import find_peers

    entries = find_peers(peers)
    counts = _counts(sequences)
    for flag, value, low in (
        ("--num-prompt", prompt, 0), ("--num-generate", generate, 1), ("--depth", depth, 0),
        ("--num-batch-prompt", batch_prompt, 1), ("--repetitions", repetitions, 1),
    ):  # fmt: skip
        if not low <= value <= 1_000_000:
            raise UsageError(f"{flag} must be {low} … 1000000, not {value}.")
    o.check_output(output)
    installed = [entry for entry in entries if entry.installed]
    if not installed:
        lines = "\n".join(f"  {entry.install}" for entry in entries)
        raise UsageError(f"None of these engines is installed; install one with:\n{lines}")

    from headrace.bench.compare import Plan, measure_model
    from headrace.bench.compare_report import render, to_dict

    plan = Plan(
        prompt=prompt,
        generate=generate,
        depth=max(depth, 1),
        sequences=counts,
        batch_prompt=batch_prompt,
        repetitions=repetitions,
        num_threads=threads,
    )
    missing = [{"title": e.title, "install": e.install} for e in entries if not e.installed]
    with LiveLine(sys.stderr) as line:
        result, conditions = measure_model(
            model,
            plan,
            installed,
            offline=offline,
            progress=StderrReporter(),
            notice=line.show,
        )
    typer.echo(render(to_dict(result, conditions | {"missing": missing}), output))


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= n <= 1024 for n in counts):
        raise UsageError(f"--num-parallel must be numbers 1 … 1024 with commas, not {text!r}.")
    return counts
