"""What snapshots of a server tell: rates between two, distributions over a window. Pure.

Counters of a snapshot are totals; everything here is a difference of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.ui.feed import WINDOW_S, Snapshot

#: One line over time: Unix time in ms, then one number per series; None breaks a line.
Point = list[float | None]
KINDS = ("decode", "prefill")


class Window:
    """The last two minutes of snapshots."""

    def __init__(self) -> None:
        self._kept: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> Snapshot | None:
        """Takes the next snapshot; returns the one before it."""
        before = self._kept[-1] if self._kept else None
        self._kept.append(snapshot)
        while snapshot["time"] - self._kept[0]["time"] > WINDOW_S:
            self._kept.popleft()
        return before

    def clear(self) -> None:
        self._kept.clear()

    @property
    def ends(self) -> tuple[Snapshot, Snapshot] | None:
        """The oldest and the newest; None before there are any."""
        return (self._kept[0], self._kept[-1]) if self._kept else None

    @property
    def seconds(self) -> float:
        ends = self.ends
        return ends[1]["time"] - ends[0]["time"] if ends else 0.0

    def change(self, *path: str) -> float:
        """By how much a counter grew over the window."""
        ends = self.ends
        return change(*ends, *path) if ends else 0.0

    def counts(self, name: str) -> list[int]:
        """What a histogram ("ttft", "itl") counted over the window."""
        ends = self.ends
        if ends is None:
            return []
        old, new = (end[name]["counts"] for end in ends)
        return [b - a for a, b in zip(old, new, strict=True)]

    def share(self, part: tuple[str, ...], whole: tuple[str, ...]) -> float | None:
        """One counter's growth as a share of another's; None where that did not grow."""
        of = self.change(*whole)
        return self.change(*part) / of if of else None


def span_words(seconds: float) -> str:
    """What a window is, that grows to two minutes while a page is open; in steps of ten seconds."""
    return (
        "last two minutes"
        if seconds > WINDOW_S - 10
        else f"last {max(seconds // 10, 1) * 10:.0f} s"
    )


def at(snapshot: Snapshot, *path: str) -> float:
    """A number somewhere inside."""
    value: Any = snapshot
    for name in path:
        value = value[name]
    return float(value)


def change(before: Snapshot, now: Snapshot, *path: str) -> float:
    return at(now, *path) - at(before, *path)


def in_steps(before: Snapshot, now: Snapshot, name: str) -> float:
    """Growth of a field of both kinds of steps together."""
    return sum(change(before, now, "steps", kind, name) for kind in KINDS)


def load_point(before: Snapshot | None, now: Snapshot) -> Point:
    """Running, waiting and paused, and how many were preempted since the snapshot before."""
    requests = now["requests"]
    preempted = None if before is None else change(before, now, "preemptions")
    return [_ms(now), requests["running"], requests["waiting"], requests["paused"], preempted]


def step_point(before: Snapshot, now: Snapshot) -> Point:
    """Decode, prompt and guessed tokens per second that steps computed."""
    seconds = _between(before, now)
    return [
        _ms(now),
        round(in_steps(before, now, "decode_tokens") / seconds, 1),
        round(in_steps(before, now, "prefill_tokens") / seconds, 1),
        round(change(before, now, "steps", "draft_tokens") / seconds, 1),
    ]


def block_point(now: Snapshot) -> Point:
    """Owned, shared and cached blocks, percent of all groups' blocks (by bytes)."""
    total = sum(group["blocks"] * group["block_bytes"] for group in now["kv"]) or 1
    parts = (
        sum(group[state] * group["block_bytes"] for group in now["kv"])
        for state in ("owned", "shared", "cached")
    )
    return [_ms(now), *(round(100 * part / total, 2) for part in parts)]


def bound_point(before: Snapshot, now: Snapshot) -> Point:
    """Generated tokens per second of steps that only generate, and what the bound allows; None
    where there were no such steps, or no bound is known."""
    tokens = change(before, now, "steps", "decode", "decode_tokens")
    seconds = change(before, now, "steps", "decode", "seconds")
    share = bound_share(before, now, "decode")
    reached = tokens / seconds if seconds > 0 and tokens else None
    allowed = reached / share if reached and share else None
    return [_ms(now), _round(reached), _round(allowed)]


def bound_share(before: Snapshot, now: Snapshot, kind: str) -> float | None:
    """The bound of a kind of steps as a share of what they took."""
    took = change(before, now, "steps", kind, "bounded_seconds")
    return change(before, now, "steps", kind, "bound_s") / took if took > 0 else None


def roof_point(before: Snapshot, now: Snapshot, kind: str) -> tuple[float, float] | None:
    """(operations per byte, operations per second) of a kind of steps; None without any."""
    took = change(before, now, "steps", kind, "bounded_seconds")
    operations = change(before, now, "steps", kind, "operations")
    num_bytes = change(before, now, "steps", kind, "read_bytes") + change(
        before, now, "steps", kind, "written_bytes"
    )
    if took <= 0 or operations <= 0 or num_bytes <= 0:
        return None
    return operations / num_bytes, operations / took


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> str:
    """The border below which that share lies, as people read it; "—" without any counts."""
    wanted, seen = share * sum(counts), 0
    if not wanted:
        return "—"
    for border, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= wanted:
            return f"≤ {seconds(border)}"
    return f"> {seconds(bounds[-1])}"


def seconds(value: float | None) -> str:
    """A time as people read it."""
    if value is None:
        return "—"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.0f} min"


def request_row(one: Mapping[str, Any]) -> list[str]:
    """A line of the table of requests."""
    most, out = one["max_tokens"], one["output_tokens"]
    speed = one["tok_per_s"]
    return [
        one["id"],
        one["state"],
        f"{one['prompt_tokens']:,}",
        f"{one['cached_tokens']:,}",
        f"{out:,} / {most:,}" if most else f"{out:,}",
        seconds(one["ttft_s"]),
        "—" if speed is None else f"{speed:.1f}",
        seconds(one["age_s"]),
        str(one["preemptions"] or ""),
    ]


REQUEST_COLUMNS = (
    "request", "state", "prompt", "cached", "output", "first token", "tok/s", "age", "preempted"
)  # fmt: skip


def _ms(snapshot: Snapshot) -> float:
    return float(round(1e3 * snapshot["time"]))


def _between(before: Snapshot, now: Snapshot) -> float:
    return max(float(now["time"] - before["time"]), 1e-3)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
