"""Junk: what a visitor's web socket sends that is no message of a page, told in few lines.

The library below the pages logs a traceback for every such piece, so whoever is let in could fill
the log. Its records become one line a minute that counts; what went wrong in our own code stays.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from types import TracebackType

#: At most one line in so many seconds.
QUIET_S = 60.0
_LIBRARIES = ("engineio", "socketio")
#: Who logs it: the library itself, asyncio for a task of its that failed, the server for a socket.
_LOGGERS = ("engineio.server", "socketio.server", "asyncio", "uvicorn.error")


class Junk(logging.Filter):
    """Lets one record of junk through in QUIET_S, as a sentence; counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._told = float("-inf")
        self._since = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not _is_junk(record):
            return True
        self._since += 1
        now = time.monotonic()
        if now - self._told < QUIET_S:
            return False
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = "a web socket of the dashboard sent what no page sends, %d times"
        record.args = (self._since,)
        record.exc_info = record.exc_text = record.stack_info = None
        self._told, self._since = now, 0
        return True


@contextlib.contextmanager
def told_in_few_lines() -> Iterator[None]:
    """While the pages live."""
    junk = Junk()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(junk)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(junk)


def _is_junk(record: logging.LogRecord) -> bool:
    """Whether the library could not go on, and nothing of ours was at work below it."""
    rooms = _rooms(record.exc_info[2] if record.exc_info else None)
    last = max((place for place, room in enumerate(rooms) if room in _LIBRARIES), default=-1)
    if "headrace" in rooms[last + 1 :]:
        return False
    return last >= 0 or record.name.startswith(_LIBRARIES)


def _rooms(trace: TracebackType | None) -> list[str]:
    """The packages that an error passed through, outermost first."""
    found = list[str]()
    while trace is not None:
        found.append(str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        trace = trace.tb_next
    return found
