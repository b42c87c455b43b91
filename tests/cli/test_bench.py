"""`headrace bench` as a process: tables, JSON, exit codes, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.native import core


def bench(*arguments: str, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "bench", *arguments],
        capture_output=True, text=True, env=environment, timeout=timeout_s, check=False,
    )  # fmt: skip


def test_machine_gives_a_row_per_level_and_thread_count() -> None:
    result = bench("machine", "-t", "1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [(row["isa"], row["threads"]) for row in report["rows"]] == [
        (isa, 1) for isa in core().available_isas()
    ]
    for row in report["rows"]:
        for name in ("read_gb_per_s", "int8_gop_per_s", "bf16_gop_per_s", "f32_gop_per_s"):
            assert row[name] > 0
    for name in ("date", "cpu", "headrace", "numerics_id", "load_average_1min"):
        assert report["conditions"][name] is not None
    assert report["buffer_bytes"] >= 8 * report["llc_bytes"] or report["notes"]


def test_machine_prints_a_table() -> None:
    isa = core().available_isas()[0]
    result = bench("machine", "-t", "1", "--isa", isa)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert isa in lines[1]
    assert lines[-1].startswith("1 ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("machine", "-t", "0"), "num_threads=0 is not in 1 … 1024"),
        (("machine", "--isa", "neon"), "isa='neon' is not a level this CPU runs"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    result = bench(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
