"""One file of packed weights: written whole or not at all, checked whole before it is used, mapped.

    "HRPACK01" · u64 header bytes · u64 checksum of the header · header (JSON) · matrices

Each matrix starts at a multiple of 64 bytes; the header holds name, format, shape, place and
checksum of each, the key, and what the file was made from. Integers are little-endian. A file may
hold anything: every place is compared with the bytes that are there before it is used.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.native import core
from headrace.ops.packed import NATIVE_FORMATS
from headrace.quant.tensor import HostTensor

if TYPE_CHECKING:
    from headrace.native import _core

MAGIC = b"HRPACK01"
SUFFIX = ".packed"
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 16 << 20
_PREFIX_BYTES = len(MAGIC) + 16

Matrices = dict[str, "_core.PackedMatrix"]


class DamagedFileError(Exception):
    """A file of packed weights is not what its name promises; says why."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One matrix: format as in NATIVE_FORMATS; at: bytes behind the first matrix's start."""

    name: str
    format: int
    n: int
    k: int
    at: int
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class _Header:
    """first_place: byte at which the first matrix may start."""

    key: str
    source: str
    entries: list[_Entry]
    first_place: int


def write_matrices(path: Path, key: str, matrices: Matrices, source: str, threads: int) -> None:
    """Writes the file `path`. source: what the matrices were made from, for people. Raises OSError;
    nothing of it is left then."""
    header, places = _layout(key, matrices, source, threads)
    ends = [place + m.nbytes for place, m in zip(places, matrices.values(), strict=True)]
    with _whole_file(path, max([len(header), *ends])) as file:
        file.write(header)
        for place, matrix in zip(places, matrices.values(), strict=True):
            file.seek(place)
            file.write(matrix.data.data)


def _layout(key: str, matrices: Matrices, source: str, threads: int) -> tuple[bytes, list[int]]:
    """(everything before the first matrix, where each matrix starts). The header tells places
    relative to the first, so that its own length does not matter."""
    native, at = core(), 0
    entries: list[_Entry] = []
    for name, matrix in matrices.items():
        checksum = f"{native.checksum(matrix.data, threads):016x}"
        entries.append(_Entry(name, matrix.format, matrix.n, matrix.k, at, matrix.nbytes, checksum))
        at += -(-matrix.nbytes // _ALIGNMENT) * _ALIGNMENT
    header = {"key": key, "source": source, "matrices": [asdict(entry) for entry in entries]}
    raw = json.dumps(header).encode()
    start = _first_place(len(raw))
    return MAGIC + _words(len(raw), _sum(raw)) + raw, [start + entry.at for entry in entries]


def _first_place(header_bytes: int) -> int:
    return -(-(_PREFIX_BYTES + header_bytes) // _ALIGNMENT) * _ALIGNMENT


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def _sum(data: bytes) -> int:
    return int(core().checksum(np.frombuffer(data, dtype=np.uint8)))


@contextmanager
def _whole_file(path: Path, num_bytes: int) -> Iterator[IO[bytes]]:
    """A file of num_bytes that appears under `path` whole or not at all. While it is written, a
    lock tells it from a leftover. Raises OSError, at once where the disk has no room."""
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}.", suffix=f"{SUFFIX}.tmp", dir=path.parent
    )
    try:
        with os.fdopen(handle, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read_header(data: npt.NDArray[np.uint8]) -> _Header:
    """Raises DamagedFileError for anything that is not a header."""
    if data.size < _PREFIX_BYTES or data[: len(MAGIC)].tobytes() != MAGIC:
        raise DamagedFileError("it does not start as such a file does")
    length, expected = (int(word) for word in data[len(MAGIC) : _PREFIX_BYTES].view("<u8"))
    if length > min(_MAX_HEADER_BYTES, data.size - _PREFIX_BYTES):
        raise DamagedFileError("its header does not fit into it")
    raw = data[_PREFIX_BYTES : _PREFIX_BYTES + length].tobytes()
    if _sum(raw) != expected:
        raise DamagedFileError("the checksum of its header is wrong")
    try:
        header = json.loads(raw)
        entries = [_Entry(**entry) for entry in header["matrices"]]
        numbers = (n for e in entries for n in (e.format, e.n, e.k, e.at, e.bytes))
        if not all(type(number) is int for number in numbers):
            raise TypeError
        if not all(type(entry.name) is str for entry in entries):
            raise TypeError
        return _Header(str(header["key"]), str(header["source"]), entries, _first_place(length))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedFileError("its header is not one") from None


def read_matrices(
    path: Path, key: str, weights: Mapping[str, HostTensor], threads: int
) -> Matrices:
    """Maps a file and checks all of it. Raises OSError or DamagedFileError."""
    native = core()
    data = _mapped(path)
    header = _read_header(data)
    if header.key != key:
        raise DamagedFileError("it belongs to another key")
    entries = {entry.name: entry for entry in header.entries}
    if entries.keys() != weights.keys():
        raise DamagedFileError("it holds other matrices")
    matrices: Matrices = {}
    for name, tensor in weights.items():
        entry, number = entries[name], NATIVE_FORMATS[tensor.format.name]
        if (entry.format, entry.n, entry.k) != (number, tensor.rows, tensor.columns):
            raise DamagedFileError(f"{name} has another shape or format")
        first = header.first_place + entry.at
        if entry.at < 0 or entry.bytes < 0 or first + entry.bytes > data.size:
            raise DamagedFileError("it is shorter than its header says")
        part = data[first : first + entry.bytes]
        try:
            matrices[name] = native.map_packed(number, part, tensor.rows, tensor.columns)
        except ValueError as error:
            raise DamagedFileError(str(error)) from None
        if f"{native.checksum(part, threads):016x}" != entry.checksum:
            raise DamagedFileError(f"the checksum of {name} is wrong")
    return matrices


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    """The file as read-only bytes; the mapping lives as long as the array."""
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DamagedFileError("it is not a file")
        if status.st_size == 0:
            raise DamagedFileError("it is empty")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, dtype=np.uint8)


def _open_at_once(name: str, flags: int) -> int:
    """Waits for no one: a pipe without a writer would keep an ordinary open for ever."""
    return os.open(name, flags | os.O_NONBLOCK)


def about(path: Path) -> tuple[str, tuple[str, ...]]:
    """(source, number formats) by the header of a file; ("?", ()) where it cannot be read."""
    names = list(NATIVE_FORMATS)
    try:
        header = _read_header(_mapped(path))
        numbers = sorted({entry.format for entry in header.entries})
        return header.source, tuple(names[number] for number in numbers)
    except (OSError, DamagedFileError, IndexError):
        return "?", ()
