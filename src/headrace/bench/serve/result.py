"""An outcome as JSON values, with its conditions, its overhead and what a reader must know."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from headrace.bench.serve.metrics import Distribution, Summary
from headrace.bench.serve.run import Outcome
from headrace.bench.serve.timeline import Record

BOUNDARY = (
    "client side over HTTP: from just before a request is written to a connection that is already "
    "open, to the read that brings the bytes; network, HTTP and queueing in the server included, "
    "connecting not"
)


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
            "cache_state": cache_state(outcome),
        },
        "interrupted": outcome.interrupted,
        "abandoned": outcome.abandoned,
        "not_sent": outcome.not_sent,
        "server_cpu_s": outcome.server_cpu_s,
        "others_cpu_share": outcome.others_share,
        "overhead": _overhead(outcome),
        "warnings": warnings(outcome),
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


def warnings(outcome: Outcome) -> list[str]:
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
    if outcome.others_share is not None and outcome.others_share > 0.1:
        found.append(
            f"others took {100 * outcome.others_share:.0f} % of this machine's CPUs meanwhile"
        )
    if summary is None:
        return found
    for label, count in summary.failures.items():
        found.append(f"{count} requests failed, {label}: {summary.details[label]}")
    if summary.ended_early:
        found.append(
            f"{summary.ended_early} answers ended before the length that was asked for "
            f"({counted(summary.finish_reasons)})"
        )
    if summary.without_done:
        found.append(f"{summary.without_done} streams ended without [DONE]")
    if "chunks counted: the server reports no usage" in summary.token_sources:
        found.append("the server reports no usage: output tokens are counted chunks")
    return found


def cache_state(outcome: Outcome) -> str:
    summary, data = outcome.summary, outcome.wanted.data
    if summary is not None and summary.cached_tokens is not None and summary.prompt_tokens:
        share = 100 * summary.cached_tokens / summary.prompt_tokens
        return f"{summary.cached_tokens} of {summary.prompt_tokens} prompt tokens came from the "\
            f"server's cache ({share:.0f} %, its own count)"  # fmt: skip
    if data.is_random and data.name == "random" and data.trace is None:
        return "every prompt is different; whether the server reused anything it does not say"
    return "unknown: prompts may repeat, and the server does not say what it reused"


def counted(counts: dict[str, int]) -> str:
    """ "length", or "stop 3, length 5"."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _median(values: Distribution) -> float:
    found = dict(values.percentiles)
    return found.get(50, values.mean)
