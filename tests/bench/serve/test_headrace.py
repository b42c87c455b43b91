"""The load generator on a real `headrace serve`: its counts are the server's counts, and its times
enclose the server's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live_server import LiveServer, serving

pytestmark = pytest.mark.models
SRC = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("smollm2-135m", "--max-model-len", "512") as live:
        yield live


def load(server: LiveServer, *arguments: str, code: int = 0) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "bench", "serve", "--base-url", server.api,
         "--num-warmups", "0", "--json", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert result.returncode == code, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def counter(server: LiveServer, name: str) -> float:
    """A sample of the server's /metrics."""
    found = re.search(rf"^headrace:{name}{{[^}}]*}} (\S+)$", server.get("/metrics").text, re.M)
    assert found is not None, name
    return float(found[1])


NAMES = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_sum",
         "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count")  # fmt: skip


def test_completions(server: LiveServer) -> None:
    before = {name: counter(server, name) for name in NAMES}
    report = load(server, "-n", "6", "-c", "3", "--input-len", "40", "--output-len", "12")
    assert server.idle()
    grown = {name: counter(server, name) - before[name] for name in NAMES}
    assert (report["completed"], report["failures"]) == (6, {})
    assert (report["ended_early"], report["without_done"]) == (0, 0)
    assert report["prompt_tokens"] == grown["prompt_tokens_total"] == 240
    assert report["output_tokens"] == grown["generation_tokens_total"] == 72
    assert report["token_sources"] == {"usage in every chunk": 6}
    assert report["finish_reasons"] == {"length": 6}
    assert report["conditions"]["model"] == "smollm2-135m"
    assert report["server_cpu_s"] > 0
    assert 0 <= report["others_cpu_share"] < 1
    # A client's request begins before the server sees it, and its tokens arrive after they leave.
    assert grown["e2e_request_latency_seconds_count"] == 6
    assert report["ttft_ms"]["mean"] * 6 / 1e3 >= grown["time_to_first_token_seconds_sum"] > 0
    assert report["e2el_ms"]["mean"] >= report["ttft_ms"]["mean"]


def test_chats_have_the_length_that_was_asked_for(server: LiveServer) -> None:
    report = load(
        server, "--endpoint", "/v1/chat/completions", "-n", "4", "--random-input-len", "80",
        "--random-range-ratio", "0.4", "--output-len", "8", "--request-rate", "50",
    )  # fmt: skip
    assert report["completed"] == 4
    assert report["conditions"]["exact_prompts"] is True
    assert report["prompt_asked"] == report["prompt_got"]
    assert report["ttft_due_ms"]["count"] == 4


def test_a_refusal_is_counted_and_quoted(server: LiveServer) -> None:
    report = load(server, "-n", "2", "--input-len", "600", "--output-len", "5", code=1)
    assert report["failures"] == {"http_400": 2}
    assert "512" in report["failure_details"]["http_400"]
