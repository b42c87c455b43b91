"""Row: one line of the hardware budget table, one hardware with one number of requests at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.limits.plan.hardware import Hardware
from headrace.limits.plan.memory import MemoryPlan
from headrace.limits.plan.times import Limiter


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. ttft_s: mean over requests that all arrive at once. joining_s: of one that joins
    while the others generate. tpot_s: of a step in which all generate. prefill_s: of one prompt
    alone. prefill, decode: what bounds the two kinds of steps. Where nobody states a peak, prompts
    have no times, and generation the one that memory allows."""

    ttft_s: float | None
    joining_s: float | None
    tpot_s: float
    prefill_s: float | None
    prefill: Limiter | None
    decode: Limiter


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. None: not known, for want of a number of the hardware.

    max_concurrency: requests of this context that memory holds. max_context: positions of each of
    this row's requests that it holds, at most the model's. within_targets: most requests that fit
    and meet --ttft and --tpot; None without targets. missed: which targets this row misses ("TTFT",
    "TPOT"); None without targets.
    """

    hardware: Hardware
    concurrency: int
    memory: MemoryPlan
    times: Times | None
    max_concurrency: int | None
    max_context: int | None
    missed: tuple[str, ...] | None
    within_targets: int | None
    output: int | None

    @property
    def free_bytes(self) -> float | None:
        """What is left of the hardware's memory; negative: what is missing."""
        limit = self.hardware.memory_bytes
        return None if limit is None else limit - self.memory.total

    @property
    def fits(self) -> bool | None:
        free = self.free_bytes
        return None if free is None else free >= 0

    @property
    def meets(self) -> bool | None:
        """Whether the row meets the targets; None without any, or where times are not known."""
        return None if self.missed is None else not self.missed

    @property
    def tok_per_s(self) -> float | None:
        """Generated tokens per second of one request."""
        return None if self.times is None else 1 / self.times.tpot_s

    @property
    def total_tok_per_s(self) -> float | None:
        """Generated tokens per second of all requests, while all generate."""
        return None if self.times is None else self.concurrency / self.times.tpot_s

    @property
    def sustained_tok_per_s(self) -> float | None:
        """Generated tokens per second of all requests, their prompts included; None where no length
        of output was given."""
        if self.times is None or self.times.prefill_s is None or self.output is None:
            return None
        seconds = self.concurrency * self.times.prefill_s + self.output * self.times.tpot_s
        return self.concurrency * self.output / seconds

    @property
    def usd_per_mtok(self) -> float | None:
        """Dollars per million generated tokens at total_tok_per_s."""
        return self._usd(self.total_tok_per_s)

    @property
    def sustained_usd_per_mtok(self) -> float | None:
        return self._usd(self.sustained_tok_per_s)

    def _usd(self, tok_per_s: float | None) -> float | None:
        price = self.hardware.price_usd_per_hour
        if price is None or tok_per_s is None:
            return None
        return price / 3600 / tok_per_s * 1e6

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        times = self.times
        return {
            "hardware": self.hardware.name,
            "concurrency": self.concurrency,
            "memory_bytes": self.memory.to_dict(),
            "memory_limit_bytes": self.hardware.memory_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "max_concurrency": self.max_concurrency,
            "max_context": self.max_context,
            "ttft_s": None if times is None else times.ttft_s,
            "ttft_joining_s": None if times is None else times.joining_s,
            "tpot_s": None if times is None else times.tpot_s,
            "tok_per_s": self.tok_per_s,
            "total_tok_per_s": self.total_tok_per_s,
            "sustained_tok_per_s": self.sustained_tok_per_s,
            "usd_per_mtok": self.usd_per_mtok,
            "sustained_usd_per_mtok": self.sustained_usd_per_mtok,
            "prefill_bound_by": None
            if times is None or times.prefill is None
            else times.prefill.word,
            "decode_bound_by": None if times is None else times.decode.word,
            "meets_targets": self.meets,
            "missed_targets": None if self.missed is None else list(self.missed),
            "max_concurrency_within_targets": self.within_targets,
        }
