"""The line that says what goes on: one line of any terminal, and nothing anywhere else."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

from headrace.cli.live import LiveLine


def shown_on(columns: int, text: str) -> str:
    """What a terminal of that width is sent."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(theirs, "w", encoding="utf-8") as stream:
            LiveLine(stream).show(text)
            return os.read(ours, 4096).decode()
    finally:
        os.close(ours)


def test_it_never_takes_a_second_line() -> None:
    start = "\r\x1b[2K"
    assert shown_on(80, "budget 25 %") == f"{start}… budget 25 %"
    assert shown_on(12, "budget 25 %  0:33 left") == f"{start}… budget 25"
    assert shown_on(1, "budget") == f"{start}…"
    assert shown_on(0, "x" * 100) == f"{start}… {'x' * 77}", "a terminal that knows no width"


def test_nothing_is_shown_where_nobody_watches() -> None:
    stream = io.StringIO()
    with LiveLine(stream) as line:
        line.show("budget")
    assert stream.getvalue() == ""
