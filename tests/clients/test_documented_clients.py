"""The pages of the clients do what they say: every block is run as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import HEADRACE_PYTHON
from documented import run_bash, run_python
from live_server import LiveServer


def test_langchain(server: LiveServer) -> None:
    output = run_python("docs/clients/langchain.md", server)
    assert "River(" in output or "name=" in output
    assert ": rain" in output


def test_llm(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    (tmp_path / "llm").mkdir()
    _, listed, prompts, schema = run_bash("docs/clients/llm.md", server, tmp_path)
    assert "headrace" in listed
    assert len(prompts.split()) > 10
    assert '"km"' in schema


def test_lm_eval(server: LiveServer, offline: Path) -> None:
    _, scored, answered = run_bash("docs/clients/lm-eval.md", server, offline)
    assert "acc_norm" in scored
    assert "exact_match" in answered


def test_guidellm(server: LiveServer, offline: Path) -> None:
    _, run, ours = run_bash("docs/clients/guidellm.md", server, offline, HEADRACE_PYTHON)
    assert "concurrent@4" in run
    assert "TTFT" in ours
    assert (offline / "report.json").stat().st_size > 1000
