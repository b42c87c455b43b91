"""What the pages show runs: Python blocks of README and three pages, commands of the README."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from documented import blocks

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}

pytestmark = pytest.mark.models


def readme_commands() -> list[str]:
    lines = "\n".join(blocks("README.md", "")).splitlines()
    commands = [line.split("#")[0].strip() for line in lines if line.startswith("headrace ")]
    return [c for c in commands if "|" not in c and not c.startswith("headrace verify")]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/python.md", "docs/structured.md", "docs/prefix-cache.md"]
)
def test_python_blocks_run(page: str) -> None:
    source = "\n".join(blocks(page, "python"))
    result = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=ENVIRONMENT,
        timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.parametrize("command", readme_commands())
def test_readme_commands_run(command: str) -> None:
    arguments = shlex.split(command)[1:]
    result = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments], capture_output=True, text=True,
        env=ENVIRONMENT, cwd=ROOT, input="Hello!\n", timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
