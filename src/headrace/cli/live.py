"""One line on stderr that says what goes on, where a person watches; nothing anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO


class LiveLine:
    """A context manager; the line is gone when it ends, however it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._live:
            print(f"\r\x1b[2K… {text}", end="", file=self._stream, flush=True)

    def clear(self) -> None:
        """Takes the line away, before something else is printed."""
        if self._live:
            print("\r\x1b[2K", end="", file=self._stream, flush=True)

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
