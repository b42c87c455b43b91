"""A real server process for tests, and plain HTTP to talk to it.

with serving("smollm2-135m", "--max-model-len", "512") as server:
    server.json("/v1/models")
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from waiting import comes_within

ROOT = Path(__file__).parents[1]
#: Of servers that want one.
API_KEY = "a-key-for-tests"
START_S = 120.0
STOP_S = 40.0
_LISTENING = re.compile(r"listening.*?(http://[^\s\"]+)")


class LiveServer:
    """One `headrace serve` process; `url` without /v1, `log()` what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.process = process
        self._log_path = log_path
        self.url = self._wait_for(self._listening)
        self.http = httpx.Client(base_url=self.url, timeout=120)

    @property
    def api(self) -> str:
        """What clients call base_url."""
        return f"{self.url}/v1"

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, body: Mapping[str, Any], **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON, read strictly; the request must succeed."""
        answer = self.get(path) if body is None else self.post(path, body)
        assert answer.status_code == 200, answer.text
        return strict_json(answer.content)

    def events(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """The events of a stream that must end with [DONE]; comments are left out."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = answer.content.decode("utf-8").split("\n\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]", data[-1]
        return [strict_json(line) for line in data[:-1]]

    def refusal(self, path: str, body: Mapping[str, Any], status: int = 400) -> dict[str, Any]:
        """The error object of a request that must be refused; the server must live on."""
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        assert self.get("/health").status_code == 200
        error: dict[str, Any] = strict_json(answer.content)["error"]
        assert isinstance(error["message"], str)
        assert error["message"]
        return error

    def healthy(self) -> bool:
        return self.get("/health").status_code == 200

    def idle(self, within_s: float = 5.0) -> bool:
        """Whether nothing runs or waits any more, at the latest after so many seconds of a machine
        that is not busy otherwise."""

        def nothing_open() -> bool:
            load = self.json("/load")
            return bool(load["server_load"] == load["running"] == load["waiting"] == 0)

        return comes_within(within_s, nothing_open, self.process.pid)

    def wait_until_healthy(self) -> None:
        self._wait_for(self.healthy)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """As an operator stops it; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the server does not stop:\n{self.log()}") from None
        return self.process.returncode

    def _listening(self) -> str | None:
        found = _LISTENING.search(self.log())
        return found[1] if found else None

    def _wait_for(self, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            result = condition()
            if result:
                return result
            time.sleep(0.02)
        raise AssertionError(f"the server did not start:\n{self.log()}")


@contextlib.contextmanager
def serving(
    model: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] = sys.executable,
    ready: bool = True,
    step_limits: bool = False,
) -> Iterator[LiveServer]:
    """Starts a server on a free port, waits until it serves (ready = False: until it listens),
    stops it at the end. It must end well and without a traceback. python: the one that runs it.
    step_limits: whether it takes the time to measure the machine first, as by default."""
    if not step_limits:
        arguments += ("--no-step-limits",)
    with tempfile.TemporaryDirectory() as directory:
        log_path = Path(directory) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [
                    os.fspath(python), "-m", "headrace.cli.main", "serve", model, "--port", "0",
                    "--kv-cache-memory", "512MiB", "--offline", *arguments,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(env or {})},
            )  # fmt: skip
        try:
            server = LiveServer(process, log_path)
            if ready:
                server.wait_until_healthy()
            yield server
            server.http.close()
            assert server.stop() == 0, server.log()
            assert "Traceback (most recent" not in server.log(), server.log()
        finally:
            process.kill()
            process.wait()


def strict_json(data: bytes | str) -> Any:
    """JSON as the standard has it: UTF-8, no NaN, no infinity, no name twice."""
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), f"a name comes twice: {names}"
    return dict(pairs)
