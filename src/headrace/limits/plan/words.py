"""Numbers as people write them: 32k, 1.5M, 80GB, 50ms; and as people read them."""

from __future__ import annotations

import math
import re

from headrace.errors import UsageError

_COUNT = re.compile(r"(\d{1,12})\s*([kKmM]?)")
_REAL = re.compile(r"(\d{1,15}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,3})?)\s*([kMGTP]i?)?(B|B/s)?", re.A)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|us|µs)?")
_PREFIXES = "kMGTP"
DASH = "—"


def parse_count(text: str, label: str, high: int) -> int:
    """A whole number 1 … high; k and M are 1024 and 1024². Raises UsageError."""
    match = _COUNT.fullmatch(text.strip())
    value = 0 if match is None else int(match[1]) * 1024 ** " km".index(match[2].lower() or " ")
    if not 1 <= value <= high:
        raise UsageError(
            f"{label} must be a whole number 1 … {high:,} (32k is 32,768), not {text!r}."
        )
    return value


def parse_counts(text: str, label: str, high: int) -> tuple[int, ...]:
    """Whole numbers with commas between, in order, each once."""
    counts = (parse_count(part, label, high) for part in text.split(","))
    return tuple(dict.fromkeys(counts))


def parse_real(text: str, label: str, example: str = "80e9 or 80GB") -> float:
    """A positive number: 80e9, 80GB (powers of 1000), 16GiB (powers of 1024). example: what the
    error shows. Raises UsageError."""
    match = _REAL.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        prefix = match[2] or ""
        base = 1024 if prefix.endswith("i") else 1000
        value = float(match[1]) * base ** (1 + _PREFIXES.index(prefix[0]) if prefix else 0)
    if not (0 < value < 1e30 and math.isfinite(value)):
        raise UsageError(f"{label} must be a positive number, as {example}, not {text!r}.")
    return value


def parse_duration(text: str, label: str) -> float:
    """Seconds: 0.5, 0.5s, 50ms. Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    scale = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6}
    value = 0.0 if match is None else float(match[1]) * scale.get(match[2] or "", 1.0)
    if not value > 0:
        raise UsageError(f"{label} must be a time, as 0.5s or 50ms, not {text!r}.")
    return value


def figures(value: float) -> str:
    """Three or more figures: 4,711, 61.2, 3.14, 0.0123."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def shown_s(seconds: float | None) -> str:
    """A time: 8.02 ms, 1.40 s, 35 min."""
    if seconds is None:
        return DASH
    if seconds < 1e-3:
        return f"{figures(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{figures(seconds * 1e3)} ms"
    return f"{figures(seconds)} s" if seconds < 600 else f"{figures(seconds / 60)} min"


def shown_gb(num_bytes: float | None) -> str:
    """Bytes in GB (10⁹), without the unit."""
    if num_bytes is None:
        return DASH
    gb = num_bytes / 1e9
    return f"{gb:,.1f}" if abs(gb) >= 10 else f"{gb:.2f}" if abs(gb) >= 0.01 or gb == 0 else "0.01"


def shown_rate(per_s: float | None) -> str:
    return DASH if per_s is None else figures(per_s)


def shown_usd(dollars: float | None) -> str:
    if dollars is None:
        return DASH
    return f"{dollars:.2f}" if dollars >= 0.1 else f"{dollars:.2g}"


def shown_count(count: int | None) -> str:
    return DASH if count is None else f"{count:,}"
