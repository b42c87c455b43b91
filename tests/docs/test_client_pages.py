"""The pages that speak to a server: their blocks, against one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from documented import blocks, run_bash, run_python
from live_server import API_KEY, LiveServer

pytestmark = pytest.mark.models


def test_openai(server: LiveServer) -> None:
    output = run_python("docs/clients/openai.md", server)
    assert "tokens" in output
    assert "length_km=" in output
    assert "temperature" in output
    assert server.idle()


def test_readme(server: LiveServer, tmp_path: Path) -> None:
    [output] = run_bash("README.md", server, tmp_path)
    assert "data: [DONE]" in output
    assert "TTFT" in output


def test_prefix_cache(server: LiveServer, tmp_path: Path) -> None:
    [pinned] = run_bash("docs/prefix-cache.md", server, tmp_path)
    answer = json.loads(pinned)
    [shown] = blocks("docs/prefix-cache.md", "json")
    assert answer.keys() == json.loads(shown).keys()
    assert answer["tokens"] == json.loads(shown)["tokens"]


def test_speculation(server: LiveServer, tmp_path: Path) -> None:
    [answered] = run_bash("docs/speculation.md", server, tmp_path)
    assert "drafting" in json.loads(answered)["timings"]


def test_curl(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    alive, answers, formed, looked, keyed = run_bash("docs/clients/curl.md", server, tmp_path)
    assert '"status":"ok"' in alive
    assert answers.rstrip().endswith("data: [DONE]")
    assert '\\"km\\":' in formed
    assert '"text":"yes"' in formed or '"text":"no"' in formed
    assert "The sea is" in looked
    assert "generation_tokens_total" in looked
    assert "smollm2-135m" in keyed
