"""The pages that speak to a server: their blocks, against one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from documented import run_bash, run_python
from live_server import API_KEY, LiveServer, serving

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("smollm2-135m", "--max-model-len", "2048") as running:
        yield running


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
