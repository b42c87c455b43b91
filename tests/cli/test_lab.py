"""`headrace lab` as a process: lists, refusals in one sentence, progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import headrace
from headrace.lab.catalog import EXPERIMENTS


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "NO_COLOR": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "headrace", "lab", *arguments],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip


def test_list_names_all_in_order_and_is_a_list_for_programs() -> None:
    assert [line.split()[0] for line in lab("list").stdout.splitlines()[::2]] == list(EXPERIMENTS)
    data = json.loads(headrace("lab", "list", "--json").stdout)
    assert [entry["name"] for entry in data] == list(EXPERIMENTS)
    for entry in data:
        assert 0 < entry["quick_s"] <= entry["full_s"] <= 3 * 3600
        assert entry["question"].endswith("?")
        assert entry["claim"]
        assert entry["try_this"]
    assert sum(entry["quick_s"] for entry in data) <= 25 * 60


def test_show() -> None:
    shown = headrace("lab", "show", "speculation").stdout
    assert "Its check must catch: kept-draft (--inject)" in shown
    assert "Runs on: qwen2.5-coder-1.5b (--model)" in shown
    assert (
        json.loads(headrace("lab", "show", "speculation", "--json").stdout)["name"] == "speculation"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "kv-cash"), "There is no experiment 'kv-cash'; did you mean kv-cache?"),
        (("run", "zzz"), "There is no experiment 'zzz'; `headrace lab list` names them."),
        (("run", "all", "--inject", "row-swap"), "name it instead of all"),
        (("run", "roofline", "--inject", "noise-key"), "does not look for the fault noise-key"),
        (("run", "heads", "--model", "smollm2-135m"), "heads makes its own models; leave --model"),
        (("run", "roofline", "--seed", "-1"), "--seed must not be negative, not -1."),
        (("run", "roofline", "--threads", "0"), "--threads must be 1 … 1,024, not 0."),
        (("run", "roofline", "--out", "/dev/null/x"), "--out /dev/null/x: Not a directory"),
        (("report", "no-such-directory"), "no-such-directory holds no results"),
    ],
)
def test_refusals_are_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = headrace("lab", *arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    result = {"format": 1, "experiment": "budget", "title": "", "question": "", "claim": "",
              "seconds": 1.0, "passed": False, "checks": [], "predictions": [], "quick": True,
              "inject": None, "started": "", "conditions": {}, "try_this": []}  # fmt: skip
    (tmp_path / "budget").mkdir()
    (tmp_path / "budget" / "result.json").write_text(json.dumps(result))
    refused = lab("report", str(tmp_path), "--output", str(tmp_path))
    assert refused.returncode == 2
    assert f"cannot be written to {tmp_path}: Is a directory." in refused.stderr
    assert ".tmp" not in refused.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["budget"]


def test_a_text_that_is_none_and_a_model_that_is_none_are_one_sentence(tmp_path: Path) -> None:
    for option, value in (("--model", "no/such-model.gguf"), ("--text", str(tmp_path / "none"))):
        result = headrace("lab", "run", "kv-cache", "--quick", option, value, "--offline", "--out",
                     str(tmp_path))  # fmt: skip
        assert result.returncode in (1, 2)
        last = result.stderr.splitlines()[-1]
        assert value.rpartition("/")[2] in last
        assert "Traceback" not in result.stderr
        assert list(tmp_path.iterdir()) == []
