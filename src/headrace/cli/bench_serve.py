"""`headrace bench serve --base-url URL`: load on any OpenAI-compatible server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import options as o
from headrace.cli.live import LiveLine
from headrace.errors import UsageError


def bench_serve(
    more_targets: Annotated[
        list[str] | None, typer.Argument(hidden=True, metavar="[TARGET]...")
    ] = None,
    base_url: Annotated[
        str, typer.Option("--base-url", metavar="URL", help="The server, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    endpoint: Annotated[
        str, typer.Option(help="/v1/completions or /v1/chat/completions.")
    ] = "/v1/completions",
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", show_default=False,
                     help="Model to ask for (default: the first of /v1/models)."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="OPENAI_API_KEY", show_default=False,
                     help="Sent as a bearer token."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME:VALUE", show_default=False,
                     help="Another header; may be repeated."),
    ] = None,
    dataset_name: Annotated[
        str, typer.Option(help="random, prefix_repetition, file or sharegpt.")
    ] = "random",
    dataset_path: Annotated[
        Path | None, typer.Option(help="Of a file or sharegpt dataset.", show_default=False)
    ] = None,
    input_len: Annotated[
        int, typer.Option("--random-input-len", "--input-len", help="Prompt tokens.")
    ] = 128,
    output_len: Annotated[
        int, typer.Option("--random-output-len", "--output-len", help="Output tokens.")
    ] = 64,
    range_ratio: Annotated[
        float, typer.Option("--random-range-ratio", help="Lengths vary by this part; 0 = fixed.")
    ] = 0.0,
    num_prefixes: Annotated[
        int, typer.Option("--prefix-repetition-num-prefixes", help="Different prefixes.")
    ] = 10,
    prefix_len: Annotated[
        int, typer.Option("--prefix-repetition-prefix-len", help="Tokens of a shared prefix.")
    ] = 256,
    suffix_len: Annotated[
        int, typer.Option("--prefix-repetition-suffix-len", help="Tokens after it.")
    ] = 256,
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", show_default=False,
                     help="Random token ids lie below (default: the server's, else 30000)."),
    ] = None,
    text_prompts: Annotated[
        bool,
        typer.Option("--text-prompts", help="Random words, not token ids, on /v1/completions."),
    ] = False,
    num_prompts: Annotated[
        int | None,
        typer.Option("--num-prompts", "-n", show_default=False,
                     help="Requests (default: 100, or as many as the file has)."),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option("--max-concurrency", "-c", show_default=False,
                     help="Requests in flight at most: a closed loop (default: no bound)."),
    ] = None,
    request_rate: Annotated[
        float, typer.Option(help="Requests per second, open loop; inf = all at once.")
    ] = float("inf"),
    burstiness: Annotated[
        float, typer.Option(help="1 = Poisson arrivals; below burstier, above more even.")
    ] = 1.0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False,
                     help="Arrival times and lengths, JSON Lines (timestamp, input_length, "
                     "output_length)."),
    ] = None,
    num_warmups: Annotated[int, typer.Option(help="Requests before, not counted.")] = 1,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of prompts and arrivals.")] = 0,
    temperature: o.Temperature = 0.0,
    ignore_eos: Annotated[
        bool | None,
        typer.Option("--ignore-eos/--no-ignore-eos", show_default=False,
                     help="Generate the whole length (default: for random data)."),
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", show_default=False,
                                 help="More fields of every request.")
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS", show_default=False,
                     help="Targets, e.g. ttft:500 tpot:50 e2el:5000."),
    ] = None,
    percentiles: Annotated[
        str, typer.Option("--percentiles", "--metric-percentiles", help="Percentiles to print.")
    ] = "50,90,95,99",
    percentile_metrics: Annotated[
        str | None,
        typer.Option(show_default=False,
                     help="Rows to print (default: ttft, tpot, itl, e2el, and what else says "
                     "something new): ttft, tpot, itl, e2el, gap, ttft_due, e2el_due."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not check the TLS certificate.")
    ] = False,
    save_result: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False,
                     help="Write everything as JSON, each request's times too."),
    ] = None,
    output: o.Output = "table",
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Load any OpenAI-compatible server and measure it: TTFT, TPOT, ITL, throughput, goodput.

    Closed loop (--max-concurrency), open loop (--request-rate, --trace), or all requests at once.
    The client's own CPU time and delay are measured and printed beside the figures.
    """
    from headrace.bench.serve.dataset import Lengths, Prefixes
    from headrace.bench.serve.metrics import parse_metrics, parse_percentiles, parse_targets
    from headrace.bench.serve.plan import Data, Load, Wanted
    from headrace.bench.serve.run import run_load
    from headrace.bench.serve.target import parse_target

    output = "json" if as_json else output
    o.check_output(output)
    if more_targets and not goodput:
        raise UsageError(
            f"Unexpected argument {more_targets[0]!r}: a server is named by --base-url, a model by "
            "--model."
        )
    wanted = Wanted(
        target=parse_target(base_url, api_key=api_key, headers=header, verify=not insecure),
        data=Data(
            name=dataset_name,
            path=dataset_path,
            trace=trace,
            count=num_prompts,
            lengths=Lengths(input_len, output_len, range_ratio),
            prefixes=Prefixes(num_prefixes, prefix_len, suffix_len),
            vocabulary=vocab_size,
            text_prompts=text_prompts,
            seed=seed,
        ),
        load=Load(max_concurrency, request_rate, burstiness, num_warmups, timeout),
        endpoint=endpoint,
        model=model,
        temperature=temperature,
        ignore_eos=ignore_eos,
        extra_body=_object("--extra-body", extra_body),
        percentiles=parse_percentiles(percentiles),
        targets=parse_targets([*(goodput or []), *(more_targets or [])]),
    )
    rows = None if percentile_metrics is None else parse_metrics(percentile_metrics)
    if save_result is not None:
        _check_writable(save_result)

    from headrace.bench.serve.report import default_rows, render
    from headrace.bench.serve.result import to_dict

    with LiveLine(sys.stderr) as line:
        outcome = run_load(wanted, line.show)
    if save_result is not None:
        text = json.dumps(to_dict(outcome, requests=True), ensure_ascii=False, indent=1)
        save_result.write_text(text + "\n", encoding="utf-8")
    typer.echo(render(outcome, output, rows or default_rows(outcome)))
    if outcome.interrupted:
        raise typer.Exit(130)
    if outcome.summary is None or not outcome.summary.completed:
        raise typer.Exit(1)


def _object(flag: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{flag} must be a JSON object, not {text!r}.")
    return value


def _check_writable(path: Path) -> None:
    """Before the run, not after it."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(
            f"--save-result {path} cannot be written: no such directory, or it is one."
        )
