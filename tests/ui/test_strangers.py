"""Who talks to the dashboard's port and is no browser: bytes without end, frames without sense."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from browser import showing
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from headrace.ui.door.junk import told_in_few_lines
from raw_http import RawClient

JUNK = (
    "junk", "4", "6", "42", "42{}", "42[5,5]", '42["event",null]', '42["event",{"id":1}]',
    '42["nope",5]', '42["ack",5]', '451-["event",{"_placeholder":true,"num":0}]', "42[" * 3000,
    b"\x00\x01",
)  # fmt: skip


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.ui
def test_a_head_has_limits(dashboard: str) -> None:
    """Those of the server's own connections; tests/server/test_connection.py waits for more."""
    for head, status in (("x: y\r\n" * 200, 431), ("x: " + "y" * 70_000 + "\r\n", 431)):
        with RawClient(dashboard) as client:
            client.send(f"GET /ui/ HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}\r\n".encode())
            answer = client.answer("GET")
            assert answer.status == status
            assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.ui
def test_who_only_fetches_a_page_starts_no_work() -> None:
    """A browser that never connects: no plan, no listing of experiments."""
    with showing("http://127.0.0.1:9") as url:
        for page in ("plan", "lab", "serving", "limits"):
            assert httpx.get(f"{url}{page}").status_code == 200
        time.sleep(2)
        ours = psutil.Process().children(recursive=True)
        assert not [p for p in ours if "lab" in p.cmdline()]


@pytest.mark.ui
def test_sockets_that_send_junk_fill_no_log() -> None:
    """`showing` looks for tracebacks in the log."""
    with showing("http://127.0.0.1:9") as url:
        page = httpx.get(url).text
        found = re.search(r"client_id\W+([0-9a-f-]{36})", page)
        assert found is not None
        address = (
            f"ws://{urlsplit(url).netloc}/ui/_nicegui_ws/socket.io/"
            f"?EIO=4&transport=websocket&client_id={found[1]}"
        )
        for piece in JUNK:
            with contextlib.suppress(ConnectionClosed), connect(address) as ws:
                ws.recv(timeout=10)
                ws.send("40")
                ws.recv(timeout=10)
                for _ in range(20):
                    ws.send(piece)
        assert httpx.get(url).status_code == 200


def test_junk_is_counted_and_our_own_faults_stay(caplog: pytest.LogCaptureFixture) -> None:
    library: dict[str, Any] = {"__name__": "socketio.server"}
    exec("def call(below):\n    below()", library)

    def fail(room: str) -> Exception:
        """What comes of a fault in a room, called by the library, called by ours."""
        below: dict[str, Any] = {"__name__": room}
        exec("def below():\n    raise KeyError('client_id')", below)
        ours: dict[str, Any] = {"__name__": "headrace.ui.serve"}
        exec("def serve(call, below):\n    call(below)", ours)
        with pytest.raises(KeyError) as caught:
            ours["serve"](library["call"], below["below"])
        return caught.value

    log = logging.getLogger("asyncio")
    with told_in_few_lines():
        for _ in range(5):
            log.error("Task exception was never retrieved", exc_info=fail("nicegui.nicegui"))
        log.error("Task exception was never retrieved", exc_info=fail("headrace.ui.pages.chat"))
        log.error("something else")
    assert _told(caplog) == [
        "a web socket of the dashboard sent what no page sends, 1 times",
        "Task exception was never retrieved",
        "something else",
    ]
    assert caplog.records[0].exc_info is None
    assert caplog.records[1].exc_info is not None
    log.error("after", exc_info=fail("nicegui.nicegui"))
    assert _told(caplog)[-1] == "after"
