"""Logs on stderr: a line for people, or a JSON object per line for machines.

A thread of their own writes them: who reads stderr slowly, or not at all, holds up no request.
"""

from __future__ import annotations

import atexit
import json
import logging
import queue
import sys
import threading
import time

#: Lines that may wait to be written; beyond, they are dropped and counted.
MAX_WAITING = 10_000
#: Seconds that a process which ends gives its last lines.
LAST_LINES_S = 1.0

#: Attributes of a record that are the logging module's own.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
#: What strangers' paths must not do to a terminal, or to the one-record-one-line rule.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS |= {code: f"\\u{code:04x}" for code in (0x2028, 0x2029)}


class JsonFormatter(logging.Formatter):
    """One object per line: time (Unix seconds), level, logger, message, and what `extra` adds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, v) for name, v in vars(record).items() if name not in _OWN)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`12:00:00 message key=value …`, with the level where it is not information."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        more = "".join(f" {name}={v}" for name, v in vars(record).items() if name not in _OWN)
        line = f"{clock} {level}{record.getMessage()}{more}".translate(_CONTROLS)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class BackgroundHandler(logging.Handler):
    """Hands records to a thread, which formats and writes them by another handler."""

    def __init__(self, writer: logging.Handler) -> None:
        super().__init__()
        self._writer = writer
        self._records: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record; drops it when too many wait."""
        if self._records.qsize() >= MAX_WAITING:
            self._num_dropped += 1
        else:
            self._records.put(record)

    def close(self) -> None:
        """Writes what waits, for a moment at most."""
        self._records.put(None)
        self._thread.join(LAST_LINES_S)
        super().close()

    def _run(self) -> None:
        while (record := self._records.get()) is not None:
            self._writer.handle(record)
            if self._num_dropped and self._records.empty():
                count, self._num_dropped = self._num_dropped, 0
                self._writer.handle(_note(f"{count} lines of the log were dropped"))


def _note(message: str) -> logging.LogRecord:
    return logging.LogRecord("headrace.server", logging.WARNING, "", 0, message, None, None)


def set_up_logging(log_format: str, level: str = "info") -> None:
    """Sends the logs of this process to stderr. log_format: "text" or "json"."""
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    handler = BackgroundHandler(writer)
    root.handlers[:] = [handler]
    atexit.register(handler.close)
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(level.upper())
