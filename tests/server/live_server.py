"""A real server process for tests, and plain HTTP to talk to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

SOURCE = Path(__file__).parents[2] / "src"
START_S = 120.0


class LiveServer:
    """One `headrace serve` process; `url` without /v1, `log()` what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path, url: str) -> None:
        self.process = process
        self.url = url
        self._log_path = log_path
        self.http = httpx.Client(base_url=url, timeout=120)

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, body: Mapping[str, Any], **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON; the request must succeed."""
        answer = self.get(path) if body is None else self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path: str, body: Mapping[str, Any], status: int = 400) -> dict[str, Any]:
        """The error object of a request that must be refused; the server must live on."""
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        assert self.get("/health").status_code == 200
        error: dict[str, Any] = answer.json()["error"]
        assert isinstance(error["message"], str)
        assert error["message"]
        return error


@contextlib.contextmanager
def serving(
    model: str, *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator[LiveServer]:
    """Starts a server on a free port, waits until it serves, stops it at the end."""
    with tempfile.TemporaryDirectory() as directory:
        log_path = Path(directory) / "log"
        with log_path.open("wb") as log:
            command = [sys.executable, "-m", "headrace.cli.main", "serve", model, *arguments]
            process = subprocess.Popen(
                [*command, "--port", "0", "--offline"],
                stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})},
            )  # fmt: skip
        try:
            server = LiveServer(process, log_path, _wait_for_url(process, log_path))
            yield server
            server.http.close()
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_url(process: subprocess.Popen[bytes], log_path: Path) -> str:
    """The address, once /health says that requests are served."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        text = log_path.read_text(encoding="utf-8", errors="replace")
        if process.poll() is not None:
            break
        for word in text.split():
            if word.startswith("http://") and word.rstrip(",:").endswith("/v1"):
                return word.rstrip(",:").removesuffix("/v1")
        time.sleep(0.02)
    raise AssertionError(f"the server did not start:\n{text}")
