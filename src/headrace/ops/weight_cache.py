"""Packed weights on disk: what packing (and quantising at load) made, kept for the next start.

A directory of files (weight_file.py), one per key (weight_key.py), mapped read-only by whoever uses
them, so processes that run the same model share its memory. A stale file is never found, only
evicted; a damaged one is removed and made anew. A cache that cannot be read or written costs a
note, never the start.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UsageError
from headrace.ops.packed import Packer, pack_all
from headrace.ops.weight_file import (
    SUFFIX,
    DamagedFileError,
    Matrices,
    about,
    read_matrices,
    write_matrices,
)
from headrace.ops.weight_key import weights_key
from headrace.quant.tensor import HostTensor

#: All files together; the least recently used go first.
DEFAULT_LIMIT_BYTES = 32 << 30
#: A writer's temporary file is a leftover when no one holds its lock and it is this old.
_LEFTOVER_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """One file of the cache. used_at: seconds since 1970 of the last use. source: the model it was
    made from. formats: number formats of its matrices."""

    path: Path
    num_bytes: int
    used_at: float
    source: str
    formats: tuple[str, ...]


class WeightCache:
    """A directory of packed weights. Safe for any number of processes at once.

    note: is told in one sentence when something fails; never raises for the cache's sake.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._note = note

    def packer(self, identity: Sequence[str], source: str) -> Packer:
        """Packs through the cache. identity: see weights_key. source: what to call the model."""

        def pack(weights: Mapping[str, HostTensor], threads: int) -> Matrices:
            key = weights_key(identity, weights)
            matrices = self.load(key, weights, threads)
            if matrices is None:
                matrices = pack_all(weights, threads)
                self.store(key, matrices, source, threads)
            return matrices

        return pack

    def load(self, key: str, weights: Mapping[str, HostTensor], threads: int) -> Matrices | None:
        """The matrices of `weights` as stored under `key`, mapped; None where there are none (or
        none that are whole, which are removed). Marks the file as used."""
        path = self._path(key)
        try:
            matrices = read_matrices(path, key, weights, threads)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            self._note(f"weight cache: {path} is damaged ({error}) and is made anew")
            with suppress(OSError):  # where it cannot be removed, storing says so
                path.unlink()
            return None
        except OSError as error:
            self._note(f"weight cache: {path} cannot be read ({error.strerror}); going on without")
            return None
        with suppress(OSError):  # someone else's cache can be used as well
            os.utime(path)
        return matrices

    def store(self, key: str, matrices: Matrices, source: str, threads: int) -> bool:
        """Keeps matrices under `key`; False (after a note) where that fails. Evicts what was not
        used for longest when the directory outgrows its limit."""
        path = self._path(key)
        total = sum(matrix.nbytes for matrix in matrices.values())
        if total > self._limit:
            self._note(
                f"weight cache: {total / 1e6:,.0f} MB of weights are more than its limit of "
                f"{self._limit / 1e6:,.0f} MB; not kept"
            )
            return False
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._remove_leftovers()
            self._evict(self._limit - total, keep=path)
            write_matrices(path, key, matrices, source, threads)
        except OSError as error:
            self._note(
                f"weight cache: {self._directory} cannot be written ({error.strerror}); going on "
                "without"
            )
            return False
        return True

    def entries(self) -> list[CachedWeights]:
        """What is there, the last used first. Files whose header cannot be read have source "?"."""
        found = []
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                continue  # evicted meanwhile
            source, formats = about(path)
            found.append(CachedWeights(path, status.st_size, status.st_mtime, source, formats))
        return sorted(found, key=lambda entry: -entry.used_at)

    def clear(self) -> int:
        """Removes every file; returns the bytes freed. Whoever uses one keeps its mapping."""
        freed = 0
        for entry in self.entries():
            entry.path.unlink(missing_ok=True)
            freed += entry.num_bytes
        self._remove_leftovers()
        return freed

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{SUFFIX}"

    def _files(self) -> list[Path]:
        try:
            return [p for p in self._directory.iterdir() if p.suffix == SUFFIX and p.is_file()]
        except OSError:
            return []

    def _evict(self, room: int, keep: Path) -> None:
        """Removes the files that were not used for longest until the rest fits into `room`."""
        used = 0
        for entry in self.entries():
            used += entry.num_bytes if entry.path != keep else 0
            if used > room and entry.path != keep:
                entry.path.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Temporary files of writers that died: old, and locked by no one."""
        for path in self._directory.glob(f".*{SUFFIX}.tmp"):
            try:
                if time.time() - path.stat().st_mtime < _LEFTOVER_AGE_S or not path.is_file():
                    continue
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            except OSError:
                continue  # in use, or gone


def directory_of(setting: str | None, default: Path) -> Path | None:
    """What a setting of the cache means: "on" the default directory, "off" or nothing no cache,
    else a directory by its absolute or ~ path. Raises UsageError for anything that looks like
    neither."""
    if setting is None or setting == "off":
        return None
    if setting == "on":
        return default
    path = Path(setting)
    if not path.is_absolute() and not setting.startswith(("~", ".")):
        raise UsageError(
            f"weight_cache = {setting!r} is neither on, off nor a directory (with / or ./ first)."
        )
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"weight_cache = {setting!r} lies in an unknown home directory.") from None
