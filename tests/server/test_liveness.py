"""/health tells the truth about a real process: loading, ready, stuck, broken. (Of a stopping one:
test_lifecycle.py.)"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from live_server import ROOT, LiveServer
from waiting import until

pytestmark = pytest.mark.models

LONG = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}


class Planted:
    """A server process whose troubles are files in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_path = directory / "log"
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("planted_server.py")), str(directory)],
            stderr=self.log_path.open("wb"),
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        url = until(lambda: re.search(r"http://\S+", self.log_path.read_text()), "listens")[0]
        self.http = httpx.Client(base_url=url, timeout=60)

    def health(self) -> tuple[int, str]:
        """Status and what it says."""
        answer = self.http.get("/health")
        body = answer.json()
        if answer.status_code == 200:
            return 200, body["status"]
        assert body["error"]["type"] == "unavailable_error"
        assert body["error"]["code"] == 503
        return answer.status_code, body["error"]["message"]

    def becomes(self, status: int, words: str) -> None:
        until(lambda: (h := self.health())[0] == status and words in h[1], f"{status} {words}")

    def plant(self, trouble: str) -> None:
        (self.directory / trouble).touch()


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    planted = Planted(tmp_path)
    yield planted
    planted.http.close()
    planted.process.send_signal(signal.SIGTERM)
    planted.process.wait(30)


def test_a_model_that_computes_nothing_is_not_served(planted: Planted) -> None:
    planted.plant("useless")
    planted.plant("load")
    assert planted.process.wait(60) != 0
    assert "cannot compute a first token: The step failed" in planted.log_path.read_text()


def test_loading_ready_stuck_and_broken(planted: Planted) -> None:
    assert planted.health() == (503, "Loading model")
    refused = planted.http.post("/v1/completions", json=LONG)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert planted.http.get("/metrics").status_code == 200
    assert planted.http.get("/version").status_code == 200
    for path in ("/events", "/kv_map", "/prefix_tree", "/limits"):
        waiting = planted.http.get(path)
        assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "1")

    planted.plant("load")
    planted.becomes(200, "ok")
    short = {"prompt": "The sea", "max_tokens": 3, "stream": False}
    assert planted.http.post("/v1/completions", json=short).status_code == 200

    planted.plant("hold")
    answers: list[httpx.Response] = []
    url = str(planted.http.base_url)
    worker = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=short, timeout=60))
    )
    worker.start()
    planted.becomes(503, "in one step for")
    assert planted.http.get("/v1/models").status_code == 200  # the door itself is not stuck
    (planted.directory / "hold").unlink()
    worker.join()
    assert answers[0].status_code == 200
    assert planted.health() == (200, "ok")

    with (
        planted.http.stream("GET", "/events") as watched,
        planted.http.stream("POST", "/v1/completions", json=LONG | {"n": 2}) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        planted.plant("break")
        last = [line for line in lines if line.startswith("data: ")][-1]
        told = [line for line in watched.iter_lines() if line]
    assert json.loads(told[-1].removeprefix("data: "))["reason"].startswith("The engine has stop")
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    planted.becomes(503, "The engine has stopped")
    assert planted.http.post("/v1/completions", json=short).status_code == 503
    assert 'finished_reason="error"' in planted.http.get("/metrics").text
    assert "planted" in planted.log_path.read_text()  # the traceback, once


def test_many_requests_end_when_the_engine_breaks(planted: Planted) -> None:
    """Those in the steps, those that wait, and those that had not yet entered: all are answered."""
    planted.plant("load")
    planted.becomes(200, "ok")
    planted.plant("hold")
    url = str(planted.http.base_url)
    statuses: list[int] = []

    def ask() -> None:
        body = {"prompt": "The sea", "max_tokens": 5}
        statuses.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code)

    workers = [threading.Thread(target=ask) for _ in range(20)]
    for worker in workers:
        worker.start()
    until(lambda: planted.http.get("/load").json()["server_load"] == 20, "20 requests are open")
    planted.plant("break")
    (planted.directory / "hold").unlink()
    for worker in workers:
        worker.join(30)
    assert statuses == [500] * 20


def test_a_fault_of_ours_ends_one_request_only(planted: Planted) -> None:
    """The log has the traceback and the request's id, the client one sentence, whole or streamed;
    nothing goes on running."""
    planted.plant("load")
    planted.becomes(200, "ok")
    short = {"prompt": "The sea", "max_tokens": 3}
    planted.plant("garble")
    whole = planted.http.post("/v1/completions", json=short, headers={"x-request-id": "whole-1"})
    assert whole.status_code == 500
    assert whole.headers["x-request-id"] == "whole-1"
    assert whole.json()["error"]["type"] == "server_error"
    stream = planted.http.post("/v1/completions", json=LONG, headers={"x-request-id": "stream-1"})
    last = stream.text.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert "garbled" not in whole.text + stream.text
    (planted.directory / "garble").unlink()
    until(lambda: planted.http.get("/load").json()["server_load"] == 0, "nothing runs")
    assert planted.http.post("/v1/completions", json=short).status_code == 200
    log = until(lambda: (t := planted.log_path.read_text()).count("garbled") >= 2 and t, "logged")
    assert "request_id=whole-1" in log
    assert "request_id=stream-1" in log


def test_version_and_load(smollm2: LiveServer) -> None:
    from headrace import __version__

    assert smollm2.json("/version") == {"version": __version__}
    idle = smollm2.json("/load")
    assert (idle["server_load"], idle["running"], idle["waiting"]) == (0, 0, 0)
    assert idle["max"] >= 512
