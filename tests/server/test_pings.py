"""Signs of life while a long prompt is computed: comments that clients pass over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from live_server import LiveServer, serving

pytestmark = pytest.mark.models
PROMPT = [100 + i % 1000 for i in range(1500)]
MESSAGES = [{"role": "user", "content": "once upon a time " * 350}]


@pytest.fixture(scope="module")
def server() -> Any:
    options = ("--ping-interval", "0.02", "--max-model-len", "2048")
    with serving("smollm2-135m", *options) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": MESSAGES}),
    ],
)
def test_a_long_prompt_is_not_silent(server: LiveServer, path: str, body: dict[str, Any]) -> None:
    limit = "max_output_tokens" if "input" in body else "max_tokens"
    request = {**body, limit: 16, "stream": True, "temperature": 0, "cache_prompt": False}
    with server.http.stream("POST", path, json=request) as stream:
        lines = [line for line in stream.iter_lines() if line]
    pings = [number for number, line in enumerate(lines) if line == ": ping"]
    texts = [number for number, line in enumerate(lines) if _text(line)]
    assert pings
    assert texts
    assert pings[0] < texts[0], "no sign of life before the first token"
    assert all(line.startswith(("data: ", "event: ", ": ping")) for line in lines)


def _text(line: str) -> str:
    """The text that an event brings."""
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line.removeprefix("data: "))
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    choices = event.get("choices") or [{}]
    return str(choices[0].get("text") or choices[0].get("delta", {}).get("content") or "")
