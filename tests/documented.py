"""Code blocks of the pages, and how they are run against a live server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from live_server import ROOT, LiveServer

#: Where the pages' server listens.
SHOWN_URL = "http://127.0.0.1:8000"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language of a page, by its path from the root."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_python(page: str, server: LiveServer) -> str:
    """All Python blocks of a page as one program; its output."""
    source = "\n".join(blocks(page, "python")).replace(SHOWN_URL, server.url)
    return _run([sys.executable, "-c", source], {})


def run_bash(
    page: str, server: LiveServer, directory: Path, headrace: str = sys.executable
) -> list[str]:
    """All bash blocks of a page, in order; the output of each. `pip install` lines are not run:
    what they name must be installed. directory: for what the commands write; `headrace` is the
    interpreter that runs `headrace`."""
    tools = directory / "bin"
    tools.mkdir()
    command = tools / "headrace"
    command.write_text(f'#!/bin/sh\nexec "{headrace}" -m headrace.cli.main "$@"\n')
    command.chmod(0o755)
    (directory / "tests").symlink_to(ROOT / "tests")  # pages speak of the repository's root
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    outputs = []
    kept = directory / "environment"  # what one block exports, the next one finds
    for block in blocks(page, "bash"):
        lines = block.replace(SHOWN_URL, server.url).splitlines()
        for line in lines:
            if line.startswith("pip install "):
                version(re.split(r"[\[=<>]", line.removeprefix("pip install ").strip("'"))[0])
        script = "\n".join(line for line in lines if not line.startswith("pip install "))
        before = f"[ ! -f {kept} ] || . {kept}\nset -euo pipefail\n"
        after = f"\nexport -p > {kept}\n"
        outputs.append(_run(["bash", "-c", before + script + after], {"PATH": path}, directory))
    return outputs


def _run(command: list[str], environment: dict[str, str], directory: Path = ROOT) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=directory, timeout=280, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout
