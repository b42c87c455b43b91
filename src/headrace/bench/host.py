"""The machine and the software that measured: conditions that every figure of ours carries.

Read from the system at the moment of asking; what cannot be read is None, never a guess. Knows no
engine, so that a load generator can tell where it ran.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from headrace import __version__


def host_conditions() -> dict[str, Any]:
    """Hardware, system, software and how busy the machine is: JSON values."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "headrace": __version__,
        "git_commit": git_commit(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "energy_preference": _read(
            "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference"
        ),
        "virtual_machine": _is_virtual(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def busy_cpu_s() -> float:
    """Seconds of all CPUs together that were not idle so far, a hypervisor's theft included (Linux;
    elsewhere 0)."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def cpu_name() -> str:
    """The processor as the system calls it."""
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit of the source tree this runs from, "+" with local changes; None when installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _is_virtual() -> bool | None:
    flags = next(
        (line for line in (_read("/proc/cpuinfo") or "").splitlines() if line.startswith("flags")),
        None,
    )
    return None if flags is None else " hypervisor" in flags


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
