"""One line on stderr that says what goes on, where a person watches; nothing anywhere else."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TextIO

_USUAL_WIDTH = 80


class LiveLine:
    """A context manager; the line is gone when it ends, however it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()

    def show(self, text: str) -> None:
        """Replaces the line, cut to the terminal's width: of two lines one would stay."""
        if self._live:
            shown = f"… {text}"[: max(self._width() - 1, 1)]
            print(f"\r\x1b[2K{shown}", end="", file=self._stream, flush=True)

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _USUAL_WIDTH
        except (OSError, ValueError):  # a stream that is no file
            return _USUAL_WIDTH

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
