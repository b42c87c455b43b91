"""Progress on stderr: a bar where a person watches, a few lines where a log does."""

from __future__ import annotations

import sys
import time

_WIDTH = 28


class StderrReporter:
    """Draws notes and progress of fetches on stderr (a `formats.fetching.Reporter`)."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._what = ""
        self._drawn = 0.0
        self._open = False

    def note(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            self._end_line()
            print(f"headrace: {text}", file=sys.stderr, flush=True)

    def progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """Redraw the bar, at most ten times a second."""
        now = time.monotonic()
        finished = total_bytes is not None and done_bytes >= total_bytes
        if self._quiet or (what == self._what and not finished and now - self._drawn < 0.1):
            return
        if not self._terminal:
            if what != self._what:
                print(f"headrace: {_line(what, 0, total_bytes)}", file=sys.stderr, flush=True)
        else:
            if what != self._what:
                self._end_line()
            print(f"\r\x1b[2K{_line(what, done_bytes, total_bytes)}", end="", file=sys.stderr)
            sys.stderr.flush()
            self._open = True
        self._what, self._drawn = what, now
        if finished:
            self._end_line()

    def _end_line(self) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False


def _line(what: str, done: int, total: int | None) -> str:
    if not total:
        return f"{what}  {done / 1e6:.1f} MB" if done else what
    if done == 0:
        return f"{what}  {total / 1e6:.1f} MB"
    filled = min(_WIDTH, _WIDTH * done // total)
    bar = "█" * filled + "░" * (_WIDTH - filled)
    return f"{what}  {bar} {done / 1e6:.0f}/{total / 1e6:.0f} MB"
