"""Hundreds of streams at once, by the client of the benchmark: nothing fails, nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from live_server import ROOT, LiveServer

pytestmark = pytest.mark.models


def run_client(server: LiveServer, total: int, concurrency: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "The mill", "ignore_eos": True, "temperature": 0, **fields}
    if fields.get("stream"):
        body["stream_options"] = {"include_usage": True}
    order = {"port": server.http.base_url.port, "body": body, "total": total,
             "concurrency": concurrency}  # fmt: skip
    client = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "stream_client.py"), json.dumps(order)],
        check=True, stdout=subprocess.PIPE, timeout=300,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(client.stdout)
    return found


def blocks_used(server: LiveServer) -> float:
    [line] = [
        line
        for line in server.get("/metrics").text.splitlines()
        if line.startswith("headrace:kv_blocks_used{")
    ]
    return float(line.rsplit(" ", 1)[1])


def test_512_streams_open_at_once(smollm2: LiveServer) -> None:
    found = run_client(smollm2, 512, 512, stream=True, max_tokens=8)
    assert found["errors"] == []
    assert found["done"] == 512
    assert found["tokens"] == 512 * 8
    assert len(found["first_s"]) == 512
    assert blocks_used(smollm2) == 0


def test_connections_are_used_again(smollm2: LiveServer) -> None:
    found = run_client(smollm2, 100, 8, max_tokens=2)
    assert found["errors"] == []
    assert found["tokens"] == 200
    assert blocks_used(smollm2) == 0
