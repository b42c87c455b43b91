"""MachineRates: how fast one machine can read memory and calculate, as plain data.

Measured (limits/machine.py) or taken from a data sheet; the bound (limits/bound.py) divides by it.
This file measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

from headrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Peak rates with `num_threads` threads on the `isa` level ("avx2", "avx512", "h100", …).

    read_bytes_per_s: streaming reads from memory. …_ops_per_s: operations, a multiply-add counts
    as two, with operands of that number format. llc_bytes: last-level cache; what fits there need
    not travel to memory. Raises UsageError for a rate that is not a positive finite number.
    """

    read_bytes_per_s: float
    int8_ops_per_s: float
    bf16_ops_per_s: float
    f32_ops_per_s: float
    num_threads: int
    isa: str
    llc_bytes: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_per_s") and not (math.isfinite(value) and value > 0):
                raise UsageError(f"The rate {field.name} must be a positive number, not {value!r}.")
        if self.num_threads < 1:
            raise UsageError(f"num_threads must be at least 1, not {self.num_threads}.")
        if self.llc_bytes < 0:
            raise UsageError(f"llc_bytes must not be negative, not {self.llc_bytes}.")

    def to_dict(self) -> dict[str, float]:
        """The rates as JSON values, in GB/s and Gop/s (10⁹)."""
        return {
            "read_gb_per_s": self.read_bytes_per_s / 1e9,
            "int8_gop_per_s": self.int8_ops_per_s / 1e9,
            "bf16_gop_per_s": self.bf16_ops_per_s / 1e9,
            "f32_gop_per_s": self.f32_ops_per_s / 1e9,
        }


def median_rates(probes: Sequence[MachineRates]) -> MachineRates:
    """Field by field; of at least one."""
    return _of_each(median, probes)


def best_rates(probes: Sequence[MachineRates]) -> MachineRates:
    """Field by field; of at least one. What a machine can: others on it make a probe slower."""
    return _of_each(max, probes)


def _of_each(
    choose: Callable[[list[float]], float], probes: Sequence[MachineRates]
) -> MachineRates:
    return replace(
        probes[0],
        read_bytes_per_s=choose([p.read_bytes_per_s for p in probes]),
        int8_ops_per_s=choose([p.int8_ops_per_s for p in probes]),
        bf16_ops_per_s=choose([p.bf16_ops_per_s for p in probes]),
        f32_ops_per_s=choose([p.f32_ops_per_s for p in probes]),
    )
