"""`headrace verify` as a process: table, JSON, exit codes, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_models
from command_line import headrace
from headrace.formats.aliases import ALIASES
from headrace.native import core
from headrace.verify.faults import FAULTS


def verify(*arguments: str, timeout_s: int = 600) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "verify", *arguments],
        capture_output=True, text=True, env=environment, timeout=timeout_s, check=False,
    )  # fmt: skip


def assert_passed(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["passed"] is True
    for rung in report["rungs"]:
        assert rung["passed"] is True, rung
        assert rung["events"] > 0, rung
        if rung["exact"]:
            assert rung["max_abs_error"] == 0, rung
            assert rung["bound"] == 0
        else:
            assert 0 <= rung["max_abs_error"] <= rung["bound"], rung


def test_list_faults_needs_no_model() -> None:
    result = headrace("verify", "--list-faults")
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(FAULTS)


@pytest.mark.models
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--inject", "no-such-fault"), ("no-such-fault", "cache-position")),
        (("--inject", "window-edge"), ("window-edge", "window")),
        (("--inject", "kv-head-map", "--no-reference"), ("kv-head-map", "headrace[torch]")),
        (("--kv-cache-dtype", "q8"), ("bf16",)),
        (("--threads", "0"), ("threads",)),
        (("--block-size", "17"), ("block_size", "16")),
        (("--isa", "mmx"), ("mmx",)),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = headrace("verify", "smollm2-135m", *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.models
@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.large)]
)
def test_a_real_model_passes(name: str) -> None:
    assert_passed(verify(name, "--json", "--quick"))


@pytest.mark.torch
def test_a_planted_fault_fails_a_model(tmp_path: Path) -> None:
    result = verify(
        str(tiny_models.build("llama", tmp_path)),
        "--quick",
        "--no-reference",
        "--inject",
        "row-swap",
    )
    assert result.returncode == 1, result.stderr
    assert "planted fault row-swap caught by:" in result.stdout
    assert "batch 1 = batch n" in result.stdout.split("caught by:")[1]


@pytest.mark.large
@pytest.mark.torch
@pytest.mark.parametrize("name", list(ALIASES))
def test_every_model_passes_the_whole_ladder(name: str) -> None:
    assert_passed(verify(name, "--json", timeout_s=1800))


@pytest.mark.large
@pytest.mark.parametrize("name", list(ALIASES))
@pytest.mark.parametrize(
    ("isa", "threads", "kv"),
    [
        ("avx2", "1", "bf16"),
        ("avx2", "2", "f16"),
        (core().available_isas()[-1], "1", "f32"),
        (core().available_isas()[-1], "2", "bf16"),
    ],
)
def test_every_level_and_thread_count(name: str, isa: str, threads: str, kv: str) -> None:
    assert_passed(
        verify(
            name, "--json", "--quick", "--no-reference", "--isa", isa, "--threads", threads,
            "--kv-cache-dtype", kv, timeout_s=1800,
        )
    )  # fmt: skip


@pytest.mark.large
@pytest.mark.torch
@pytest.mark.parametrize("fault", list(FAULTS))
def test_every_fault_is_caught_on_real_models(fault: str) -> None:
    """On the smallest model that can have it (gemma3 for the window)."""
    name = "gemma3-270m" if fault == "window-edge" else "smollm2-135m"
    options = () if FAULTS[fault].needs_reference else ("--no-reference",)
    result = verify(name, "--json", "--quick", "--inject", fault, *options)
    assert result.returncode == 1, result.stderr
    assert json.loads(result.stdout)["passed"] is False
