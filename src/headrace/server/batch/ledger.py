"""Ledger: the output file, which is also the memory of what is done.

    append one whole line per answer ─▶ kill -9 at any moment leaves whole lines and at most one
    part of a line, which the next run drops

A line is handed to the system in one write, so a killed process loses nothing that was told; `sync`
makes it last through a loss of power, too. A lock keeps two runs from one file. A file that is not
such a ledger is never changed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UsageError
from headrace.server.batch.lines import ID, START, Line


@dataclass(frozen=True, slots=True)
class Done:
    """Of one answered line: the hashes of its bytes and of the settings of then."""

    digest: str
    run: str


class Ledger:
    """Open it before anything else; use as a context manager. done: input line → what is known of
    its answer. num_dropped_bytes: of a partial last line."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError: the file cannot be written, is in use, or is no ledger."""
        self.path = path
        self.done: dict[int, Done] = {}
        self.num_dropped_bytes = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UsageError(f"{path} is not a plain file.")
            self._lock()
            self._size = self._recover()  # bytes of whole lines
        except BaseException:
            os.close(self._file)
            raise
        self._unsynced = False
        self._lost: OSError | None = None  # what a sync could not keep

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, line: bytes) -> None:
        """Writes one whole line, or nothing and raises OSError (a full disk)."""
        if self._lost is not None:
            raise self._lost
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)
        self._unsynced = True

    def sync(self) -> None:
        """Makes what was written last through a loss of power. Raises OSError, also when the file
        was removed; then so does every later call, since the system tells it only once."""
        if self._unsynced and self._lost is None:
            self._unsynced = False
            try:
                os.fsync(self._file)
                if os.fstat(self._file).st_nlink == 0:
                    raise OSError(errno.ENOENT, "the file was removed", str(self.path))
            except OSError as error:
                self._lost = error
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """Syncs and gives the file up."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def check(self, line: Line) -> bool:
        """Whether a line of the input is done. Raises UsageError when another line is."""
        done = self.done.get(line.number)
        if done is not None and done.digest != line.digest:
            raise UsageError(
                f"{self.path} answers another line {line.number} than the input has now: the input "
                f"was changed. Write to another file, or remove this one to start again."
            )
        return done is not None

    def check_run(self, run: str) -> None:
        """Raises UsageError when answers were made with other settings. run: their hash."""
        if any(done.run != run for done in self.done.values()):
            raise UsageError(
                f"{self.path} holds answers of another model or with other settings. Go on with "
                f"those, write to another file, or remove this one to start again."
            )

    # ---- opening ----------------------------------------------------------------------------

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path} is being written by another run-batch.") from None
        except OSError as error:
            raise UsageError(f"{self.path} cannot be locked: {error.strerror}.") from None

    def _recover(self) -> int:
        """Reads what is done, and drops a last line that was not finished. Bytes that are left."""
        size = 0
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    self._check_part(line, number)
                    self.num_dropped_bytes = len(line)
                    break
                self._note(line, number)
                size += len(line)
        if self.num_dropped_bytes:
            os.ftruncate(self._file, size)
        return size

    def _note(self, line: bytes, number: int) -> None:
        try:
            match = ID.fullmatch(json.loads(line)["id"])
        except (ValueError, TypeError, KeyError, RecursionError):
            match = None
        if match is None:
            raise self._stranger(number)
        answered = int(match["number"])
        if answered in self.done:
            raise UsageError(f"{self.path} answers line {answered} twice (line {number}).")
        self.done[answered] = Done(match["line"], match["run"])

    def _check_part(self, part: bytes, number: int) -> None:
        """A part of a line must be ours before it is dropped; a loss of power may leave zeros."""
        if not (part.startswith(START) or START.startswith(part) or not part.strip(b"\0")):
            raise self._stranger(number)

    def _stranger(self, number: int) -> UsageError:
        return UsageError(
            f"{self.path} exists, and its line {number} was not written by run-batch. Nothing was "
            f"changed; write to another file."
        )
