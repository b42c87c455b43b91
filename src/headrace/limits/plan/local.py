"""This machine as Hardware: its memory, and rates that are measured now (0.3 s of all CPUs)."""

from __future__ import annotations

import os

from headrace.limits.plan.hardware import Hardware
from headrace.limits.rates import MachineRates


def local_hardware(rates: MachineRates | None = None) -> Hardware:
    """rates: measured before; default: now. Raises like machine.MachineProbe."""
    if rates is None:
        from headrace.limits.machine import quick_rates

        rates = quick_rates()
    return Hardware(
        name="local",
        title=f"this machine, {rates.num_threads} threads, {rates.isa}",
        kind="cpu",
        memory_bytes=local_memory_bytes(),
        read_bytes_per_s=rates.read_bytes_per_s,
        int8_ops_per_s=rates.int8_ops_per_s,
        bf16_ops_per_s=rates.bf16_ops_per_s,
        f32_ops_per_s=rates.f32_ops_per_s,
        cache_bytes=rates.llc_bytes,
        measured=True,
        rates=rates,
    )


def local_memory_bytes(root: str = "/sys/fs/cgroup") -> int:
    """All memory of this machine, or what its control group may take: not what happens to be free,
    so that the same plan fits tomorrow."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open(f"{root}/memory.max", encoding="ascii") as file:
            return min(total, int(file.read()))
    except (OSError, ValueError):  # no control group, or "max"
        return total
