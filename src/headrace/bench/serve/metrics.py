"""From records to figures: spec section 1, from the client's side. Pure.

A request that failed is counted by its kind and is in no latency, no throughput and no goodput.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.serve.timeline import Record
from headrace.errors import UsageError

#: What can have percentiles. ttft_due and e2el_due: from the time an open loop had a request due.
METRICS = ("ttft", "tpot", "itl", "e2el", "gap", "ttft_due", "e2el_due")
#: What a goodput target can be set for, in milliseconds.
TARGETS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of `count` values, in milliseconds; std: of the population. percentiles: (p, value), linear
    between neighbours."""

    count: int
    mean: float
    std: float
    min: float
    max: float
    percentiles: tuple[tuple[float, float], ...]

    def at(self, p: float) -> float:
        """One of the percentiles."""
        return dict(self.percentiles)[p]

    def to_dict(self) -> dict[str, float]:
        named = {f"p{p:g}": value for p, value in self.percentiles}
        return {
            "count": self.count, "mean": self.mean, "std": self.std, **named,
            "min": self.min, "max": self.max,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to. duration_s: from the first request written to the last answer's end.
    latencies: metric → distribution, of complete requests (absent without a value). concurrency:
    requests in flight, averaged over the duration."""

    completed: int
    failures: dict[str, int]
    details: dict[str, str]
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: float
    requests_per_s: float
    output_tok_per_s: float
    total_tok_per_s: float | None
    goodput_per_s: float | None
    good: int | None
    concurrency: float
    latencies: dict[str, Distribution]
    finish_reasons: dict[str, int]
    ended_early: int
    without_done: int
    token_sources: dict[str, int]
    prompt_asked: tuple[int, int] | None
    prompt_got: tuple[int, int] | None
    output_asked: tuple[int, int] | None
    output_got: tuple[float, float] | None
    tokens_per_arrival: float


def distribution(values_ms: Iterable[float], percentiles: Sequence[float]) -> Distribution | None:
    """None of no values."""
    ordered = sorted(values_ms)
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    spread = math.fsum((v - mean) ** 2 for v in ordered) / len(ordered)
    return Distribution(
        len(ordered),
        mean,
        math.sqrt(spread),
        ordered[0],
        ordered[-1],
        tuple((p, percentile(ordered, p)) for p in percentiles),
    )


def percentile(ordered: Sequence[float], p: float) -> float:
    """Of ascending values, linear between the two nearest (numpy's default)."""
    place = (len(ordered) - 1) * p / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    low_value, high_value = ordered[low], ordered[high]
    # Equal neighbours stay exact.
    return low_value + (high_value - low_value) * (place - low)


def parse_percentiles(text: str) -> tuple[float, ...]:
    """ "50,90,99". Raises UsageError."""
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(0 <= p <= 100 for p in values):
        raise UsageError(f"--percentiles takes numbers 0 … 100 with commas, not {text!r}.")
    return values


def parse_metrics(text: str) -> tuple[str, ...]:
    """ "ttft,tpot". Raises UsageError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in METRICS]:
        raise UsageError(
            f"--percentile-metrics takes {', '.join(METRICS)}, not {', '.join(unknown)!r}."
        )
    return names


def parse_targets(parts: Iterable[str]) -> dict[str, float]:
    """ "ttft:500" → {"ttft": 500.0}, milliseconds. Raises UsageError."""
    targets = {}
    for part in (piece for text in parts for piece in text.replace(",", " ").split()):
        name, _, value = part.partition(":")
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = -1.0
        if name not in TARGETS or not limit_ms > 0:
            raise UsageError(
                f"--goodput takes NAME:MILLISECONDS with {', '.join(TARGETS)}, not {part!r}."
            )
        targets[name] = limit_ms
    return targets


def summarise(
    records: Sequence[Record], percentiles: Sequence[float], targets: dict[str, float] | None = None
) -> Summary:
    """Of at least one record."""
    complete = [r for r in records if r.failure is None]
    failed = [r for r in records if r.failure is not None]
    begin_ns = min(r.start_ns for r in records)
    duration_s = (max(r.end_ns for r in records) - begin_ns) / 1e9
    output = math.fsum(r.num_output for r in complete)
    prompts = _total(r.prompt_tokens for r in complete)
    good = sum(_meets(r, targets) for r in complete) if targets else None

    def per_s(amount: float) -> float:
        return amount / duration_s if duration_s > 0 else 0.0

    return Summary(
        completed=len(complete),
        failures=dict(Counter(r.failure for r in failed if r.failure)),
        details={r.failure: r.detail for r in reversed(failed) if r.failure},
        duration_s=duration_s,
        prompt_tokens=prompts,
        cached_tokens=_total(r.cached_tokens for r in complete),
        output_tokens=output,
        requests_per_s=per_s(len(complete)),
        output_tok_per_s=per_s(output),
        total_tok_per_s=None if prompts is None else per_s(output + prompts),
        goodput_per_s=None if good is None else per_s(good),
        good=good,
        concurrency=per_s(sum(r.e2el_ns for r in records) / 1e9),
        latencies=_latencies(complete, percentiles),
        finish_reasons=dict(Counter(r.finish_reason or "none" for r in complete)),
        ended_early=sum(r.max_tokens is not None and r.num_output < r.max_tokens for r in complete),
        without_done=sum(not r.done_seen for r in complete),
        token_sources=dict(Counter(r.token_source.value for r in complete)),
        prompt_asked=_range(r.num_prompt for r in complete),
        prompt_got=_range(r.prompt_tokens for r in complete),
        output_asked=_range(r.max_tokens for r in complete),
        output_got=_range(r.num_output for r in complete),
        tokens_per_arrival=output / max(sum(len(r.arrivals_ns) for r in complete), 1),
    )


def _latencies(complete: Sequence[Record], percentiles: Sequence[float]) -> dict[str, Distribution]:
    values: dict[str, Iterable[float | None]] = {
        "ttft": (r.ttft_ns for r in complete),
        "tpot": (r.tpot_ns for r in complete),
        "itl": (value for r in complete for value in r.itl_ns()),
        "e2el": (r.e2el_ns for r in complete),
        "gap": (value for r in complete for value in r.gaps_ns()),
        "ttft_due": _from_due(complete, lambda r: r.arrivals_ns[0]),
        "e2el_due": _from_due(complete, lambda r: r.end_ns),
    }
    made = {
        name: distribution((ns / 1e6 for ns in of if ns is not None), percentiles)
        for name, of in values.items()
    }
    return {name: found for name, found in made.items() if found is not None}


def _from_due(complete: Sequence[Record], end: Callable[[Record], int]) -> list[float | None]:
    return [None if r.scheduled_ns is None else end(r) - r.scheduled_ns for r in complete]


def _meets(record: Record, targets: dict[str, float]) -> bool:
    """A time that does not exist (the TPOT of a single arrival) misses no target."""
    values: dict[str, Any] = {
        "ttft": record.ttft_ns, "tpot": record.tpot_ns, "e2el": record.e2el_ns,
    }  # fmt: skip
    return all(
        values[name] is None or values[name] / 1e6 <= limit for name, limit in targets.items()
    )


def _total(values: Iterable[int | None]) -> int | None:
    """None where nobody said."""
    said = [value for value in values if value is not None]
    return sum(said) if said else None


def _range(values: Iterable[float | None]) -> Any:
    said = [value for value in values if value is not None]
    return (min(said), max(said)) if said else None
