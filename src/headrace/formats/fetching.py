"""What every fetch shares: reporting, the lock, hashing, and the sidecar that remembers a check."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from headrace.errors import ModelSourceError, UsageError
from headrace.formats.cache_dirs import atomic_write

_CHUNK = 4 << 20


class Reporter(Protocol):
    """Who is told how a fetch goes. Calls come from the fetching thread, or a worker of it."""

    def note(self, text: str) -> None:
        """One sentence, such as why a source is passed over."""
        ...

    def progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """How far `what` has come; called often, and once with done_bytes = total_bytes."""
        ...


class Silent:
    """A Reporter that tells no one."""

    def note(self, text: str) -> None:
        """Nothing."""

    def progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """Nothing."""


def offline_wanted(offline: bool | None) -> bool:
    """Whether the network is off: by argument, HEADRACE_OFFLINE or HF_HUB_OFFLINE.

    Raises UsageError for a value that is neither yes nor no.
    """
    if offline:
        return True
    for name in ("HEADRACE_OFFLINE", "HF_HUB_OFFLINE"):
        value = os.environ.get(name, "").strip().lower()
        if value in ("1", "true", "yes", "on"):
            return True
        if value not in ("", "0", "false", "no", "off"):
            raise UsageError(f"{name} is {value!r}; it takes 1 or 0")
    return False


@contextmanager
def fetch_lock(path: Path, reporter: Reporter) -> Iterator[None]:
    """Hold the lock file of one model, so that two processes never fetch it at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise ModelSourceError(
            f"the cache directory {path.parent} can not be written: {error.strerror}; "
            "set HEADRACE_CACHE to another one"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            reporter.note("another process is fetching this model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path, reporter: Reporter, what: str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    total = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            reporter.progress(what, done, total)
    return digest.hexdigest()


def _sidecar(path: Path) -> Path:
    return path.with_name(f".{path.name}.checked")


def remember_checked(path: Path, sha256: str) -> None:
    """Write down that `path`, as it is now, has this SHA-256. Failing to is harmless."""
    stat = path.stat()
    record = {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    try:
        with atomic_write(_sidecar(path)) as file:
            file.write(json.dumps(record).encode())
    except OSError:
        pass


def is_checked(path: Path, sha256: str) -> bool:
    """Whether `path` was found to have this SHA-256 and has not changed since."""
    try:
        record = json.loads(_sidecar(path).read_text())
        stat = path.stat()
        return bool(
            record == {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        )
    except (OSError, ValueError):
        return False
