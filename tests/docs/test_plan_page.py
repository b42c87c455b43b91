"""docs/plan.md: its commands and its Python run, and its example is what the planner says today."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_documented_code import ENVIRONMENT, ROOT

from documented import blocks
from headrace.cli.main import run

PAGE = "docs/plan.md"
COMMANDS = "".join(blocks(PAGE, "bash")).splitlines()


@pytest.mark.models
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [own] = blocks(PAGE, "toml")
    (tmp_path / "workstation.toml").write_text(own)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert words[:2] == ["headrace", "plan"]
    assert run(words[1:]) == 0
    assert len(capsys.readouterr().out) > 500


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [source] = blocks(PAGE, "python")
    exec(compile(source, PAGE, "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        ["h100", "1"], ["h100", "32"], ["l40s", "1"], ["l40s", "32"],
    ]  # fmt: skip


def test_the_example_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_plan_docs.py", "--check"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
