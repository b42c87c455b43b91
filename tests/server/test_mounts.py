"""An application mounted beside the API: it answers under its path, without a key, only there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from live_server import ROOT, LiveServer
from raw_http import exchange, request

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log_path = tmp_path_factory.mktemp("mounted") / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("mounted_server.py"))],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
    try:
        server = LiveServer(process, log_path)
        server.wait_until_healthy()
        yield server
        server.http.close()
    finally:
        process.kill()
        process.wait()


def socket_url(server: LiveServer, path: str) -> str:
    return server.url.replace("http", "ws") + path


def test_it_has_its_path_and_nothing_else(mounted: LiveServer) -> None:
    for path in ("/ui", "/ui/", "/ui/a/b", "/ui/../v1/models", "/ui%2f../metrics", "/%75i"):
        answer = exchange(mounted.url, request("GET", path))
        assert answer.status == 200
        assert answer.body.decode() == f"{unquote(path)} {mounted.url}"
    for path in ("/uix", "//ui", "/UI", "/v1/models", "/events", "/x/ui", "/./ui", "/v1/../ui"):
        assert exchange(mounted.url, request("GET", path)).status == 401, path
    assert mounted.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
    assert f"url={mounted.url} pages={mounted.url}/ui/" in mounted.log()


def test_its_web_sockets_work_and_no_others_do(mounted: LiveServer) -> None:
    with connect(socket_url(mounted, "/ui/socket"), compression=None) as socket:
        for text in ("hello", "again " * 1000):
            socket.send(text)
            assert socket.recv(timeout=60) == text.upper()
        socket.send("x" * (2 << 20))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
    for path in ("/v1/models", "/uix", "/"):
        with pytest.raises(InvalidStatus) as refused:
            connect(socket_url(mounted, path))
        assert refused.value.response.status_code == 401


def test_it_lives_as_long_as_the_server(mounted: LiveServer) -> None:
    """The last test of this file: an open socket does not keep a server that is told to stop."""
    with connect(socket_url(mounted, "/ui/socket")) as socket:
        socket.send("hello")
        assert socket.recv(timeout=60) == "HELLO"
        assert mounted.stop(signal.SIGTERM) == 0
    log = mounted.log()
    assert log.index("mounted: begins") < log.index("is ready") < log.index("mounted: ends")
    assert "Traceback" not in log, log
