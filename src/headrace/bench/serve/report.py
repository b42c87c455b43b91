"""An outcome for people: tables with their conditions (plain, Markdown), one CSV line, JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from headrace.bench.serve.metrics import Distribution, Summary
from headrace.bench.serve.result import BOUNDARY, cache_state, counted, to_dict, warnings
from headrace.bench.serve.run import Outcome
from headrace.bench.tables import aligned, figures, markdown_table

_TITLES = {
    "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "gap": "gap",
    "ttft_due": "TTFT from due", "e2el_due": "E2EL from due",
}  # fmt: skip


def render(outcome: Outcome, output: str, metrics: Sequence[str]) -> str:
    """output: table, md, csv or json. metrics: which rows the tables have."""
    data = to_dict(outcome)
    match output:
        case "json":
            return json.dumps(data, ensure_ascii=False, indent=1)
        case "csv":
            return _csv(data)
        case "md":
            return "\n".join([*_tables(outcome, metrics, markdown=True), "", *_listed(outcome)])
        case _:
            return "\n".join([*_notes(outcome), "", *_tables(outcome, metrics, markdown=False)])


def default_rows(outcome: Outcome) -> tuple[str, ...]:
    """TTFT, TPOT, ITL and E2EL; gaps where they are not the ITL; times from due where requests had
    one."""
    rows = ["ttft", "tpot", "itl", "e2el"]
    latencies = outcome.summary.latencies if outcome.summary else {}
    if "gap" in latencies and latencies["gap"] != latencies["itl"]:
        rows.append("gap")
    return (*rows, *(name for name in ("ttft_due", "e2el_due") if name in latencies))


def _tables(outcome: Outcome, metrics: Sequence[str], *, markdown: bool) -> list[str]:
    summary = outcome.summary
    if summary is None:
        return ["No request ended."]
    draw = markdown_table if markdown else aligned
    lines = draw(("", "value"), _totals(summary, outcome))
    shown = [(name, summary.latencies[name]) for name in metrics if name in summary.latencies]
    if shown:
        names = [f"p{p:g}" for p, _ in shown[0][1].percentiles]
        headers = ("ms", "mean", "std", *names, "max")
        lines += ["", *draw(headers, [_row(name, d) for name, d in shown])]
    return lines


def _totals(summary: Summary, outcome: Outcome) -> list[tuple[str, str]]:
    failed = sum(summary.failures.values())
    rows = [
        ("requests complete", str(summary.completed)),
        ("requests failed", str(failed)),
        ("duration s", f"{summary.duration_s:.2f}"),
        ("requests/s", figures(summary.requests_per_s)),
        ("output tok/s", figures(summary.output_tok_per_s)),
    ]
    if summary.total_tok_per_s is not None:
        rows.append(("prompt + output tok/s", figures(summary.total_tok_per_s)))
    if summary.goodput_per_s is not None:
        share = 100 * (summary.good or 0) / max(summary.completed + failed, 1)
        rows.append(("goodput requests/s", figures(summary.goodput_per_s)))
        rows.append(("goodput share", f"{share:.0f} %"))
    if outcome.server_cpu_s is not None and summary.duration_s > 0:
        share = 100 * outcome.server_cpu_s / summary.duration_s
        rows.append(("server CPU s", f"{outcome.server_cpu_s:.2f}"))
        rows.append(("server CPU, of a core", f"{share:.0f} %"))
    rows.append(("concurrency, mean", f"{summary.concurrency:.1f}"))
    rows.append(("concurrency, most", str(outcome.conditions["most_concurrent"])))
    return rows


def _row(name: str, values: Distribution) -> tuple[str, ...]:
    numbers = (values.mean, values.std, *(v for _, v in values.percentiles), values.max)
    return (_TITLES[name], *(f"{value:.2f}" for value in numbers))


def _listed(outcome: Outcome) -> list[str]:
    return [f"- {note}" for note in _notes(outcome)]


def _notes(outcome: Outcome) -> list[str]:
    """The conditions in some lines, then the warnings."""
    wanted, summary, cost = outcome.wanted, outcome.summary, outcome.overhead
    c = outcome.conditions
    others = outcome.others_share
    targets = ", ".join(f"{name} ≤ {ms:g} ms" for name, ms in wanted.targets.items())
    lines = [
        f"{wanted.target.url}{wanted.endpoint}, model {outcome.model}; {_load(outcome)}",
        f"{_lengths(outcome)}; temperature {wanted.temperature:g}"
        + (", ends of text ignored" if c.get("ignore_eos") else "")
        + (f"; good: {targets}" if targets else ""),
        f"times: {BOUNDARY}",
        f"warm-up: {c.get('warm_up_requests', 0)} requests before, not counted"
        + (", from the same prompts" if c.get("shared_with_warm_up") else "")
        + f"; cache: {cache_state(outcome)}",
    ]
    if summary is not None:
        lines.append(
            f"tokens: {counted(summary.token_sources)}; {summary.tokens_per_arrival:.2f} per "
            f"arrival; finish reasons: {counted(summary.finish_reasons) or 'none'}"
        )
    lag = cost.lag_ms
    lines.append(
        f"this client: {cost.cpu_s:.2f} s CPU ({100 * cost.cpu_share:.0f} % of a core), "
        f"{cost.us_per_chunk:.0f} µs per read, {cost.handling_us:.0f} µs of them its own code; "
        + (
            f"late by {lag.at(50):.2f} ms (median), {lag.at(95):.2f} (p95), {lag.max:.1f} (most); "
            if lag
            else ""
        )
        + f"event loop {cost.loop}"
    )
    if cost.send_delay_ms is not None:
        d = cost.send_delay_ms
        lines.append(f"sent after due: {d.at(50):.2f} ms (median), {d.at(99):.2f} (p99), "
                     f"{d.max:.1f} (most)")  # fmt: skip
    lines.append(
        f"{c['cpu']}, {c['cpus']} CPUs; headrace {c['headrace']}"
        + (f" ({c['git_commit']})" if c["git_commit"] else "")
        + f"; {c['date']}; load {c['load_average_1min']} before"
        + ("" if others is None else f"; {100 * others:.0f} % of the CPUs went to others")
    )
    return lines + [f"NOTE: {warning}" for warning in warnings(outcome)]


def _load(outcome: Outcome) -> str:
    load, data = outcome.wanted.load, outcome.wanted.data
    bound = f", at most {load.max_concurrency} at a time" if load.max_concurrency else ""
    if data.trace is not None:
        return f"open loop from a trace{bound}"
    if math.isfinite(load.request_rate):
        kind = "Poisson" if load.burstiness == 1 else f"gamma, burstiness {load.burstiness:g}"
        return f"open loop, {load.request_rate:g} requests/s ({kind}){bound}"
    if load.max_concurrency:
        return f"closed loop, {load.max_concurrency} at a time"
    return "all requests at once"


def _lengths(outcome: Outcome) -> str:
    summary, data = outcome.summary, outcome.wanted.data
    name = data.name if data.trace is None else "trace"
    if summary is None:
        return f"dataset {name}"
    prompts = f"prompts of {_span(summary.prompt_got)} tokens"
    if summary.prompt_asked not in (None, summary.prompt_got):
        prompts += f" (asked for {_span(summary.prompt_asked)})"
    outputs = f"outputs of {_span(summary.output_got)}"
    if summary.output_asked not in (None, summary.output_got):
        outputs += f" (asked for {_span(summary.output_asked)})"
    return f"dataset {name}, seed {data.seed}: {prompts}, {outputs}"


def _span(limits: tuple[float, float] | None) -> str:
    if limits is None:
        return "an unknown number of"
    low, high = limits
    return f"{low:g}" if low == high else f"{low:g} … {high:g}"


_CSV_FIELDS = ("model", "base_url", "endpoint", "dataset", "max_concurrency", "request_rate",
               "completed", "failed", "duration_s", "requests_per_s", "output_tok_per_s",
               "total_tok_per_s", "goodput_per_s", "concurrency", "prompt_tokens", "cached_tokens",
               "output_tokens", "server_cpu_s")  # fmt: skip
_CSV_LAST = ("client_cpu_share_of_a_core", "cpu", "headrace", "git_commit", "date")


def _csv(data: dict[str, Any]) -> str:
    """One line of headers, one of values."""
    flat = data["conditions"] | data["overhead"] | data
    times = {
        f"{name}_{part}": value
        for name, values in data.items()
        if name.endswith("_ms") and isinstance(values, dict)
        for part, value in values.items()
        if part != "count" and name != "goodput_targets_ms"
    }
    row = {name: flat.get(name, "") for name in (*_CSV_FIELDS, *times, *_CSV_LAST)} | times
    text = io.StringIO()
    writer = csv.DictWriter(text, list(row), lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)
    return text.getvalue().rstrip("\n")
