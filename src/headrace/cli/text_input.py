"""Reading text a user names: a file, or standard input as `-`."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.errors import UsageError


def read_text(path: Path | None) -> str:
    """UTF-8 text of a file or of stdin. Raises UsageError naming the file and what is wrong."""
    assert path is not None
    name = "standard input" if str(path) == "-" else str(path)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {name}: {error.strerror or error}.") from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start}).") from error
