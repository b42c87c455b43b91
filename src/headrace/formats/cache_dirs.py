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


def cache_root() -> Path:
    """The cache directory of this user (absolute; may not exist yet)."""
    named = os.environ.get("HEADRACE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg).expanduser() if xdg else Path.home() / ".cache"
    return base.absolute() / "headrace"


def models_dir() -> Path:
    """Model files, one directory per alias or repository."""
    return cache_root() / "models"


def tokenizers_dir() -> Path:
    """Built tokenizers, by hash of the vocabulary they were built from."""
    return cache_root() / "tokenizers"


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
