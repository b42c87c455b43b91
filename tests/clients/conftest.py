"""Other people's clients, in the environment of `make test-clients`, against a server that runs in
the development environment. A client that is missing fails at its import: nothing is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from live_server import ROOT, LiveServer, serving

#: Runs Headrace; the clients run in the interpreter of the tests.
HEADRACE_PYTHON = os.environ.get("HEADRACE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    with serving(MODEL, "--max-model-len", "2048", python=HEADRACE_PYTHON) as running:
        yield running


@pytest.fixture
def api(server: LiveServer) -> str:
    """What clients call base_url."""
    return f"{server.url}/v1"


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hugging Face libraries ask nobody and keep their files in a directory of this test."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return tmp_path


@pytest.fixture(scope="session")
def in_process() -> Callable[[str, Any], Any]:
    """Runs a piece of Python in Headrace's own environment: (source, input) → its output. The
    source finds the input as `data` and leaves its output as `result`; both are JSON."""

    def run(source: str, data: Any) -> Any:
        head, tail = (
            "import json, sys\ndata = json.load(sys.stdin)\n",
            "\njson.dump(result, sys.stdout)",
        )
        code = head + source + tail
        done = subprocess.run(
            [HEADRACE_PYTHON, "-c", code], input=json.dumps(data), capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
