"""Calibrations on disk: one file per machine, thread count, instruction set and version.

Kept in the user's cache, so that a machine is measured once; a new version of the kernels asks for
a new measurement. This file measures nothing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from headrace import __version__
from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write, calibrations_dir
from headrace.limits.estimate import Calibration
from headrace.ops.numerics import NUMERICS_ID

#: No calibration is larger.
_MOST_BYTES = 1 << 20


def kernel_version() -> str:
    """What a calibration is of: this version of Headrace and its arithmetic."""
    return f"{__version__} {NUMERICS_ID}"


def calibration_path(cpu: str, num_threads: int, isa: str) -> Path:
    """Where the calibration of such a machine lies for this version, if there is one."""
    words = "\n".join((cpu, str(num_threads), isa, kernel_version()))
    return calibrations_dir() / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"


def save_calibration(calibration: Calibration, path: Path | None = None) -> Path:
    """Writes it, whole or not at all; default: where find_calibration looks. Raises UsageError
    where it cannot be written."""
    if path is None:
        c = calibration
        path = calibration_path(c.cpu, c.num_threads, c.isa)
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(calibration.to_dict(), indent=1).encode())
    except OSError as error:
        raise UsageError(
            f"The calibration cannot be written to {path}: {error.strerror}."
        ) from error
    return path


def load_calibration(path: Path) -> Calibration:
    """Raises UsageError naming the file where it cannot be read or holds something else."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError("too large")
        values = json.loads(data)
    except OSError as error:
        raise UsageError(f"The calibration {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a calibration ({error}); remove it and calibrate anew."
        ) from None
    return Calibration.from_dict(values, str(path))


def find_calibration(cpu: str, num_threads: int, isa: str) -> Calibration | None:
    """What was saved for such a machine and this version; None: nothing. Raises UsageError for a
    damaged file."""
    path = calibration_path(cpu, num_threads, isa)
    return load_calibration(path) if path.is_file() else None
