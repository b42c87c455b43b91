"""Mapping a model file into memory, and saying clearly why that is not possible.

Knows no file format. Everything above reads the returned view; nothing here copies or writes.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from headrace.errors import ModelFileError


def map_file(path: Path) -> memoryview:
    """The whole of a regular file as a read-only view, uint8 [size].

    The view keeps the mapping alive; pages are read when touched. Raises ModelFileError when the
    path is missing, a directory, not a regular file, empty, or not readable.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFileError(f"{path} is empty; download it again.")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {reason(error)}.") from None


def read_small_file(path: Path, max_bytes: int) -> bytes:
    """The bytes of a configuration file of at most `max_bytes`. Raises ModelFileError."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {reason(error)}.") from None
    if len(data) > max_bytes:
        raise ModelFileError(f"{path} is larger than {max_bytes} bytes, too large for what it is.")
    return data


def check_regular(path: Path) -> None:
    """Refuses what would block or never end when read (a pipe, a device), and what is missing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {reason(error)}.") from None
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{path} is a directory, not a file; give the model file's path.")
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path} is not a regular file; give the model file's path.")


def reason(error: OSError | ValueError) -> str:
    """The operating system's own words, without the path and number that we print ourselves."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).lower()


def shorten(text: str, limit: int = 80) -> str:
    """A name from a file, quoted and cut, so that hostile names cannot flood a message."""
    return repr(text if len(text) <= limit else text[:limit] + "…")
