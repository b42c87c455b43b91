"""An outcome as data, and as tables for people (plain, Markdown, CSV)."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace.bench.serve.metrics import Distribution, Summary
from headrace.bench.serve.run import Outcome
from headrace.bench.serve.timeline import Record
from headrace.bench.tables import aligned, figures, markdown_table

BOUNDARY = (
    "client side over HTTP: from just before a request is written to a connection that is already "
    "open, to the read that brings the bytes; network, HTTP and queueing in the server included, "
    "connecting not"
)
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


# ---- data ---------------------------------------------------------------------------------------


def to_dict(outcome: Outcome, *, requests: bool = False) -> dict[str, Any]:
    """Everything as JSON values; times in milliseconds. requests: one entry per request too."""
    wanted, summary = outcome.wanted, outcome.summary
    load, data = wanted.load, wanted.data
    found: dict[str, Any] = {
        "conditions": outcome.conditions
        | {
            "base_url": wanted.target.url,
            "endpoint": wanted.endpoint,
            "model": outcome.model,
            "boundary": BOUNDARY,
            "dataset": data.name if data.trace is None else "trace",
            "seed": data.seed,
            "max_concurrency": load.max_concurrency,
            "request_rate": load.request_rate if math.isfinite(load.request_rate) else "inf",
            "burstiness": load.burstiness,
            "temperature": wanted.temperature,
            "extra_body": wanted.extra_body,
            "timeout_s": load.timeout_s,
            "warm_up_included": False,
            "model_load_included": False,
            "cache_state": _cache_state(outcome),
        },
        "interrupted": outcome.interrupted,
        "abandoned": outcome.abandoned,
        "not_sent": outcome.not_sent,
        "overhead": _overhead(outcome),
        "warnings": _warnings(outcome),
    }
    if summary is not None:
        found |= _summary(summary, wanted.targets)
    if requests:
        begin = min((r.start_ns for r in outcome.records), default=0)
        ordered = sorted(outcome.records, key=lambda r: r.index)
        found["requests"] = [_request(r, begin) for r in ordered]
    return found


def _summary(summary: Summary, targets: dict[str, float]) -> dict[str, Any]:
    values = asdict(summary)
    del values["latencies"], values["details"]
    latencies = {f"{name}_ms": d.to_dict() for name, d in summary.latencies.items()}
    return values | {
        "failed": sum(summary.failures.values()),
        "failure_details": summary.details,
        "goodput_targets_ms": targets,
        **latencies,
    }


def _request(record: Record, begin_ns: int) -> dict[str, Any]:
    scheduled = record.scheduled_ns
    tpot = record.tpot_ns
    return {
        "index": record.index,
        "due_ms": None if scheduled is None else (scheduled - begin_ns) / 1e6,
        "start_ms": (record.start_ns - begin_ns) / 1e6,
        "ttft_ms": None if record.ttft_ns is None else record.ttft_ns / 1e6,
        "tpot_ms": None if tpot is None else tpot / 1e6,
        "e2el_ms": record.e2el_ns / 1e6,
        "gaps_ms": [ns / 1e6 for ns in record.gaps_ns()],
        "num_prompt": record.num_prompt,
        "max_tokens": record.max_tokens,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.num_output,
        "finish_reason": record.finish_reason,
        "failure": record.failure,
        "detail": record.detail,
    }


def _overhead(outcome: Outcome) -> dict[str, Any]:
    cost = outcome.overhead
    return {
        "event_loop": cost.loop,
        "client_cpu_s": cost.cpu_s,
        "client_cpu_share_of_a_core": cost.cpu_share,
        "reads": cost.reads,
        "client_us_per_read": cost.us_per_chunk,
        "handling_us_per_read": cost.handling_us,
        "loop_lag_ms": cost.lag_ms.to_dict() if cost.lag_ms else None,
        "send_delay_ms": cost.send_delay_ms.to_dict() if cost.send_delay_ms else None,
        "connections": cost.connections,
        "connect_ms": cost.connect_ms,
        "resent": cost.resent,
    }


def _warnings(outcome: Outcome) -> list[str]:
    """What a reader must know before believing a figure."""
    found = []
    if outcome.interrupted:
        found.append(
            f"interrupted: {outcome.abandoned} requests were in flight and {outcome.not_sent} not "
            f"sent; the figures are of those that had ended"
        )
    summary = outcome.summary
    itl = summary.latencies.get("gap") if summary else None
    median = None if itl is None else _median(itl)
    found += outcome.overhead.warnings(median)
    if summary is None:
        return found
    for label, count in summary.failures.items():
        found.append(f"{count} requests failed, {label}: {summary.details[label]}")
    if summary.ended_early:
        found.append(
            f"{summary.ended_early} answers ended before the length that was asked for "
            f"({_counts(summary.finish_reasons)})"
        )
    if summary.without_done:
        found.append(f"{summary.without_done} streams ended without [DONE]")
    if "chunks counted: the server reports no usage" in summary.token_sources:
        found.append("the server reports no usage: output tokens are counted chunks")
    return found


def _cache_state(outcome: Outcome) -> str:
    summary, data = outcome.summary, outcome.wanted.data
    if summary is not None and summary.cached_tokens is not None and summary.prompt_tokens:
        share = 100 * summary.cached_tokens / summary.prompt_tokens
        return f"{summary.cached_tokens} of {summary.prompt_tokens} prompt tokens came from the "\
            f"server's cache ({share:.0f} %, its own count)"  # fmt: skip
    if data.is_random and data.name == "random" and data.trace is None:
        return "every prompt is different; whether the server reused anything it does not say"
    return "unknown: prompts may repeat, and the server does not say what it reused"


# ---- text ---------------------------------------------------------------------------------------


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
    lines = [
        f"{wanted.target.url}{wanted.endpoint}, model {outcome.model}; {_load(outcome)}",
        f"{_lengths(outcome)}; temperature {wanted.temperature:g}"
        + (", ends of text ignored" if c.get("ignore_eos") else "")
        + "".join(f"; good: {name} ≤ {ms:g} ms" for name, ms in wanted.targets.items()),
        f"times: {BOUNDARY}",
        f"warm-up: {c.get('warm_up_requests', 0)} requests before, not counted"
        + (", from the same prompts" if c.get("shared_with_warm_up") else "")
        + f"; cache: {_cache_state(outcome)}",
    ]
    if summary is not None:
        lines.append(
            f"tokens: {_counts(summary.token_sources)}; {summary.tokens_per_arrival:.2f} per "
            f"arrival; finish reasons: {_counts(summary.finish_reasons) or 'none'}"
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
    )
    return lines + [f"NOTE: {warning}" for warning in _warnings(outcome)]


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


def _counts(counts: dict[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _median(values: Distribution) -> float:
    found = dict(values.percentiles)
    return found.get(50, values.mean)


_CSV_FIELDS = ("model", "base_url", "endpoint", "dataset", "max_concurrency", "request_rate",
               "completed", "failed", "duration_s", "requests_per_s", "output_tok_per_s",
               "total_tok_per_s", "goodput_per_s", "concurrency", "prompt_tokens", "cached_tokens",
               "output_tokens")  # fmt: skip
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
