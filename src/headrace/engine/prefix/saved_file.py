"""One file of saved KV blocks: written whole or not at all, read as if anything could be in it.

    prefix, 64 bytes   "HRKVSAV1" · u64 × 7: stamp bytes, index at, index bytes, file bytes,
                       checksums of stamp, index and the 56 bytes before
    stamp              JSON (stamp.py)
    blocks             from the next multiple of 4096 on, one after the other
    index              saved_index.py

The prefix is written last, into a temporary file that then takes the name: whoever is killed leaves
the old file as it was. Blocks are read with ordinary reads, not through a mapping, since a mapped
file that shrinks kills the reader. Knows no tree and no engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.engine.prefix.saved_index import MAX_INDEX_BYTES, DamagedSaveError, Index
from headrace.engine.prefix.stamp import Stamp
from headrace.native import core

SUFFIX = ".prefixes"
_MAGIC = b"HRKVSAV1"
_PREFIX = struct.Struct("<8s7Q")
_MAX_STAMP_BYTES = 64 << 10
_PAGE = 4096
_LOCK = ".lock"

Bytes = npt.NDArray[np.uint8]


class SaveInProgressError(Exception):
    """Another process is saving into the directory."""


class SaveWriter:
    """A file in the making; `finish` or `abandon` ends it. path: the name that it will take.

    One writer per directory at a time. Blocks are collected in memory by `add` and go to the file
    by `write`, which may be called by another thread. num_pending_bytes: collected, not written.
    """

    def __init__(self, path: Path, stamp: Stamp) -> None:
        """Creates the directory if need be. Raises OSError or SaveInProgressError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._stamp = stamp.to_json()
        self.stamp_key = stamp.key
        self._lock = _take_lock(path.parent)
        self._buffer = bytearray()  # its first num_pending_bytes wait to be written
        self.num_pending_bytes = 0
        try:
            for leftover in path.parent.glob(f".*{SUFFIX}.tmp"):  # their writers are dead
                leftover.unlink(missing_ok=True)
            self._temporary = path.with_name(f".{path.name}.tmp")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(self._temporary, flags, 0o600)
        except BaseException:
            os.close(self._lock)
            raise
        self._at = _data_at(len(self._stamp))
        os.lseek(self._file, self._at, os.SEEK_SET)

    @property
    def num_bytes(self) -> int:
        """Size so far, what is collected included."""
        return self._at + self.num_pending_bytes

    def add(self, data: Bytes) -> int:
        """Collects a block; its checksum."""
        end = self.num_pending_bytes + data.size
        if end > len(self._buffer):
            self._buffer.extend(bytes(max(end, 2 * len(self._buffer)) - len(self._buffer)))
        self._buffer[self.num_pending_bytes : end] = data.data
        self.num_pending_bytes = end
        return int(core().checksum(data))

    def write(self) -> None:
        """Writes what is collected. Raises OSError (a full disk): then `abandon`."""
        with memoryview(self._buffer) as buffer:
            _write(self._file, buffer[: self.num_pending_bytes])
        self._at += self.num_pending_bytes
        self.num_pending_bytes = 0

    def finish(self, index: bytes) -> int:
        """Writes the rest, makes it last, and puts it in the old file's place; its size. Raises
        OSError; nothing has changed then."""
        try:
            self.write()
            _write(self._file, index)
            total = self._at + len(index)
            counts = (len(self._stamp), self._at, len(index), total)
            head = _PREFIX.pack(_MAGIC, *counts, _sum(self._stamp), _sum(index), 0)[:-8]
            os.lseek(self._file, 0, os.SEEK_SET)
            _write(self._file, head + struct.pack("<Q", _sum(head)) + self._stamp)
            os.fsync(self._file)
            os.replace(self._temporary, self._path)
            _sync_directory(self._path.parent)
        except BaseException:
            self.abandon()
            raise
        os.close(self._file)
        os.close(self._lock)
        return total

    def abandon(self) -> None:
        """Leaves nothing behind."""
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        os.close(self._file)
        os.close(self._lock)


class SavedFile:
    """An open file: its stamp; then, for an engine of the same stamp, its index and its blocks.
    Get one by `open_saved`."""

    def __init__(self, file: int) -> None:
        """file: a descriptor, which the caller closes. Raises OSError or DamagedSaveError."""
        self._file = file
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedSaveError("it is not a file")
        head = _read(file, 0, min(_PREFIX.size, status.st_size))
        if len(head) < _PREFIX.size or not head.startswith(_MAGIC):
            raise DamagedSaveError("it does not start as such a file does")
        _, stamp_bytes, index_at, index_bytes, total, stamp_sum, index_sum, own_sum = (
            _PREFIX.unpack(head)
        )
        if _sum(head[:-8]) != own_sum:
            raise DamagedSaveError("the checksum of its first bytes is wrong")
        if total != status.st_size or index_at + index_bytes != total:
            raise DamagedSaveError("it is cut short or has grown")
        if stamp_bytes > _MAX_STAMP_BYTES or index_bytes > MAX_INDEX_BYTES:
            raise DamagedSaveError("its stamp or index is too large")
        self._data_at = _data_at(stamp_bytes)
        self._index_place = (index_at, index_bytes, index_sum)
        if self._data_at > index_at:
            raise DamagedSaveError("its parts overlap")
        stamp = _read(file, _PREFIX.size, stamp_bytes)
        if _sum(stamp) != stamp_sum:
            raise DamagedSaveError("the checksum of its stamp is wrong")
        try:
            self.stamp = Stamp.from_json(stamp)
            self.stamp_key = self.stamp.key
        except ValueError:
            raise DamagedSaveError("its stamp is not one") from None

    def read_index(self) -> Index:
        """Reads and checks the index. The caller's stamp must equal the file's. Raises OSError or
        DamagedSaveError."""
        index_at, index_bytes, index_sum = self._index_place
        data = _read(self._file, index_at, index_bytes)
        if _sum(data) != index_sum:
            raise DamagedSaveError("the checksum of its index is wrong")
        groups = self.stamp.groups
        index = Index(data, len(groups), self.stamp.block_size, self.stamp.num_ids)
        sizes = np.array([group.block_bytes for group in groups], np.int64)[index.groups]
        self._sizes = sizes
        self._places = self._data_at + np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if self._places[-1] != index_at:
            raise DamagedSaveError("its blocks do not fill the place before its index")
        return index

    def read_block(self, record: int) -> tuple[Bytes, int]:
        """(bytes, checksum) of a stored block. Raises OSError or DamagedSaveError."""
        data = np.empty(int(self._sizes[record]), np.uint8)
        if os.preadv(self._file, [data.data], int(self._places[record])) != data.size:
            raise DamagedSaveError("it is cut short")
        return data, int(core().checksum(data))


@contextmanager
def open_saved(path: Path) -> Iterator[SavedFile]:
    """Opens a file of saved blocks. Raises OSError or DamagedSaveError."""
    # O_NONBLOCK: a pipe without a writer would keep an ordinary open for ever.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield SavedFile(file)
    finally:
        os.close(file)


def saved_files(directory: Path) -> list[Path]:
    """The files of saved blocks in a directory, the last written first; [] where there are none."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                with contextlib.suppress(OSError):
                    found.append((entry.stat().st_mtime_ns, Path(entry.path)))
    return [path for _, path in sorted(found, reverse=True)]


def _data_at(stamp_bytes: int) -> int:
    return -(-(_PREFIX.size + stamp_bytes) // _PAGE) * _PAGE


def _take_lock(directory: Path) -> int:
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SaveInProgressError from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(file: int, data: memoryview | bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _read(file: int, at: int, num_bytes: int) -> bytes:
    data = os.pread(file, num_bytes, at)
    if len(data) != num_bytes:
        raise DamagedSaveError("it is cut short")
    return data


def _sum(data: bytes | Sequence[int]) -> int:
    return int(core().checksum(np.frombuffer(bytes(data), dtype=np.uint8)))
