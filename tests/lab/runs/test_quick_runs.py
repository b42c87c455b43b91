"""Every experiment, quick, as a user runs it: its checks hold, and what it says is whole.

`make test-lab`; about 25 minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.lab.catalog import EXPERIMENTS, find

pytestmark = pytest.mark.lab

SOURCE = Path(__file__).parents[3] / "src"

#: Experiment → a fault of the spec's section 15 that its check must catch.
PLANTED = [
    ("kv-cache", "cache-position"),
    ("kv-cache", "rope-offset"),
    ("batching", "row-swap"),
    ("sampling", "noise-key"),
    ("formats", "skipped-norm"),
    ("faults", "kv-head-map"),
    ("speculation", "kept-draft"),
    ("roofline", "skipped-norm"),
    ("heads", "kv-head-map"),
]


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_run(name: str, out: Path) -> None:
    done = headrace("lab", "run", name, "--quick", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"headrace: {name} +\d+ % +\d+:\d\d left", done.stderr), done.stderr
    data: dict[str, Any] = json.loads((out / name / "result.json").read_text())
    assert data["passed"]
    assert data["checks"]
    assert data["predictions"], "an experiment predicts before it measures"
    assert not [p["key"] for p in data["predictions"] if p["verdict"] == "not measured"]
    assert data["conclusions"]
    assert data["figures"]
    for figure in data["figures"]:
        assert (out / name / figure["file"]).read_bytes().startswith(b"\x89PNG")
        assert figure["alt"]
    page = (out / name / "findings.md").read_text()
    assert find(name).question in page
    assert "**Conditions.**" in page
    said = [c["text"] for c in data["conclusions"]] + [c["detail"] for c in data["checks"]]
    assert not [text for text in said if re.search(r"\b(nan|inf)\b", text)]
    written = json.loads((out / name / "prediction.json").read_text())
    assert [p["key"] for p in written["predictions"]] == [p["key"] for p in data["predictions"]]


@pytest.mark.parametrize(("name", "fault"), PLANTED)
def test_planted_faults_fail_the_matching_experiment(name: str, fault: str, out: Path) -> None:
    target = out / f"planted-{fault}"
    done = headrace("lab", "run", name, "--quick", "--inject", fault, "--out", str(target))
    assert done.returncode == 1, done.stdout + done.stderr
    data = json.loads((target / name / "result.json").read_text())
    assert data["inject"] == fault
    assert not data["passed"]
    assert [check["name"] for check in data["checks"] if not check["passed"]]
    assert not data["tables"], "nothing is measured after a failed check"


def test_the_report_joins_them(out: Path) -> None:
    done = headrace("lab", "report", str(out))
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.strip()).read_text()
    for name in EXPERIMENTS:
        assert f'id="{name}"' in page
