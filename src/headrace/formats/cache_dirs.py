"""Where Headrace keeps what it fetches and builds: models, tokenizers, test data.

HEADRACE_CACHE names the directory itself; otherwise XDG_CACHE_HOME/headrace; otherwise
~/.cache/headrace. Nothing here creates a directory: writers do, when they write.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headrace.errors import UsageError


def cache_root() -> Path:
    """The cache directory of this user (absolute; may not exist yet). Raises UsageError where it
    lies in a home directory that the system does not know."""
    named = os.environ.get("HEADRACE_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser().absolute()
        base = Path(xdg).expanduser() if xdg else Path.home() / ".cache"
        return base.absolute() / "headrace"
    except RuntimeError:
        raise UsageError(
            f"the cache directory {named or xdg or '~/.cache'} lies in a home directory that does "
            "not exist; set HEADRACE_CACHE to another one"
        ) from None


def models_dir() -> Path:
    """Model files, one directory per alias or repository."""
    return cache_root() / "models"


def tokenizers_dir() -> Path:
    """Built tokenizers, by hash of the vocabulary they were built from."""
    return cache_root() / "tokenizers"


def packed_dir() -> Path:
    """Packed weights, by what they were made from."""
    return cache_root() / "packed"


def calibrations_dir() -> Path:
    """What this user's machines were found to reach, by machine and version."""
    return cache_root() / "calibrations"


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears whole or not at all: a temporary beside it, then a rename.

    Creates the parent directory. On any exception the temporary is removed and `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
