"""`headrace bench run MODEL`: speed next to its limit, after a check that it computes right."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli import options as o
from headrace.cli.live import LiveLine
from headrace.cli.progress import StderrReporter

Numbers = str  # comma-separated whole numbers


def bench_run(
    model: o.Model,
    prompts: Annotated[
        Numbers, typer.Option("--num-prompt", "-p", help="Prompt tokens; 0 = no prompt test.")
    ] = "512",
    outputs: Annotated[
        Numbers, typer.Option("--num-generate", "-n", help="Generated tokens; 0 = none.")
    ] = "128",
    depths: Annotated[
        Numbers, typer.Option("--depth", "-d", help="Positions in the cache before the test.")
    ] = "0",
    batches: Annotated[
        Numbers,
        typer.Option("--num-parallel", "-npl",
                     help="Sequences together; above 1: prompts and generation in one test."),
    ] = "1",
    batch_prompts: Annotated[
        Numbers | None,
        typer.Option("--num-batch-prompt", "-npp", show_default=False,
                     help="Prompt tokens of each sequence of a batch (default: like -p)."),
    ] = None,
    threads: Annotated[
        Numbers | None,
        typer.Option("--threads", "-t", show_default=False,
                     help="Threads (default: all usable CPUs)."),
    ] = None,
    repetitions: Annotated[
        int, typer.Option("--repetitions", "-r", help="Repetitions of every test.")
    ] = 5,
    output: o.Output = "table",
    ops: Annotated[
        bool, typer.Option("--ops", help="Also a table of the ops: where the time goes.")
    ] = False,
    quantize: o.Quantize = None,
    kv_cache_dtype: o.KVFormat = "bf16",
    isa: Annotated[
        str | None,
        typer.Option(help="Instruction-set level (default: HEADRACE_ISA, else the best).",
                     show_default=False),
    ] = None,
    block_size: o.BlockSize = 16,
    max_num_batched_tokens: o.ChunkTokens = None,
    kv_cache_memory: o.KVMemory = None,
    inject: Annotated[
        str | None,
        typer.Option("--inject", metavar="FAULT", show_default=False,
                     help="Plant a fault of `headrace verify`; the check must then refuse."),
    ] = None,
    offline: o.Offline = False,
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Measure a model: PP, TG, TTFT, TPOT and batch throughput, each next to its limit.

    Lists with commas give every combination. The quick rungs of `headrace verify` run first, on
    exactly this configuration; when one fails, no speed is printed and the exit code is 1.
    """
    from headrace.bench.cases import Plan, numbers

    output = "json" if as_json else output
    o.check_output(output)
    plan = Plan(
        prompts=numbers("-p", prompts),
        outputs=numbers("-n", outputs),
        depths=numbers("-d", depths),
        batches=numbers("-npl", batches),
        batch_prompts=None if batch_prompts is None else numbers("-npp", batch_prompts),
        repetitions=repetitions,
    )
    counts = (None,) if threads is None else numbers("-t", threads)

    from headrace.bench.report import render
    from headrace.bench.run import run_bench
    from headrace.bench.setup import Settings
    from headrace.engine.model import open_model
    from headrace.verify.faults import NO_FAULT, find_fault

    opened = open_model(
        model,
        quantize=quantize,
        offline=offline or None,
        progress=StderrReporter(quiet=quantize is None),
    )
    settings = Settings(
        threads=counts,
        kv_cache_dtype=kv_cache_dtype,
        isa=isa,
        block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory=kv_cache_memory,
        ops=ops,
        fault=NO_FAULT if inject is None else find_fault(inject, opened.program),
    )
    with LiveLine(sys.stderr) as line:
        result = run_bench(opened, plan, settings, line.show)
    typer.echo(render(result, output))
