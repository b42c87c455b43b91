"""A record is one line, whatever a stranger put into it."""

from __future__ import annotations

import logging

from headrace.server.logs import TextFormatter


def test_controls_of_a_path_are_spelled_out() -> None:
    path = "/a\n12:00:00 POST /forged\r\x1b[2J\x9b31m\u2028z é"
    record = logging.makeLogRecord({"msg": "GET %s", "args": (path,), "levelno": logging.INFO})
    line = TextFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert "/a\\x0a12:00:00 POST /forged\\x0d\\x1b[2J\\x9b31m\\u2028z é" in line
