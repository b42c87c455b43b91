"""The conditions of a measurement: what a figure must carry to be comparable (spec section 1).

Read from the system at the moment of asking; what cannot be read is None, never a guess.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.bench.cases import PROMPT_SEED
from headrace.engine.config import EngineConfig
from headrace.engine.model import OpenModel
from headrace.ops.numerics import NUMERICS_ID
from headrace.ops.packed import activation_kind


def machine_conditions() -> dict[str, Any]:
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
        "numerics_id": NUMERICS_ID,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "energy_preference": _read(
            "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference"
        ),
        "virtual_machine": _is_virtual(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def bench_conditions(model: OpenModel, config: EngineConfig, repetitions: int) -> dict[str, Any]:
    """`machine_conditions`, and everything about the model and the engine that a figure depends on;
    token counts, batch, depth and threads stand in the rows."""
    weights = model.program.weights.values()
    matrices = [t for t in weights if t.rows > 1]
    return machine_conditions() | {
        "model": model.name,
        "quantize": model.quantize,
        "model_bytes": model.weight_bytes,
        "weights": sorted({t.format.name for t in matrices}),
        "activations": sorted({activation_kind(t).name.lower() for t in matrices}),
        "kv_format": config.kv_format.value,
        "block_size": config.block_size,
        "kv_allocator": config.kv_allocator.value,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
        "path": "Engine.add and Engine.step: scheduling, sampling, detokenizing included",
        "model_load_included": False,
        "warm_up_included": False,
        "warm_up": "every test once, not counted",
        "device_synchronised": True,
        "repetitions": repetitions,
        "sampling": "greedy, ends of text ignored",
        "prompts": f"random token ids, seed {PROMPT_SEED}, no shared prefixes",
        "limit": "bound = max(bytes / bandwidth, operations / peak) of every step; matmuls at the "
        "int8 peak, attention at the bf16 peak",
    }


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
