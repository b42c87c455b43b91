"""docs/run-batch.md: its request, its command and its answer, as they stand."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from documented import blocks
from live_server import ROOT

pytestmark = pytest.mark.models
PAGE = "docs/run-batch.md"


def test_the_command_of_the_page(tmp_path: Path) -> None:
    request, shown = blocks(PAGE, "json")
    [command] = blocks(PAGE, "bash")
    program, *arguments = shlex.split(command)
    assert program == "headrace"
    (tmp_path / "requests.jsonl").write_text(request, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    answer = json.loads((tmp_path / "answers.jsonl").read_text(encoding="utf-8"))
    assert answer["response"]["body"]["choices"][0]["message"]["content"]
    told = json.loads(shown)
    assert answer.keys() == told.keys()
    assert answer["response"].keys() == told["response"].keys()
    assert answer["custom_id"] == json.loads(request)["custom_id"] == told["custom_id"]
