"""`headrace bench` as a process: tables, JSON, exit codes, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_models
from command_line import headrace
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
    result = headrace("bench", "machine", "-t", "1", "--isa", isa)
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


# ---- bench run ----------------------------------------------------------------------------------

SMALL = ("-p", "40", "-n", "6", "-r", "2", "--offline")


@pytest.mark.torch
def test_run_measures_next_to_limits(tmp_path: Path) -> None:
    """(On smollm2-135m: the README's command, in tests/docs.)"""
    model = str(tiny_models.build("llama-256", tmp_path))
    result = bench("run", model, *SMALL, "-npl", "1,3", "--quantize", "q4_1", "-o", "json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert [(row["test"], row["batch"]) for row in data["rows"]] == [
        ("pp40", 1), ("tg6", 1), ("pp40+tg6", 3), ("pp40", 3), ("tg6", 3),
    ]  # fmt: skip
    for row in data["rows"]:
        rate = row["tok_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert len(row["values"]) == 2
        assert 0 < row["serial_tok_per_s"] <= row["bound_tok_per_s"]
        assert row["of_bound"] == pytest.approx(rate["median"] / row["bound_tok_per_s"])
    probe = data["probe"]
    assert probe["num_probes"] == 7  # around two repetitions of three measurements
    assert all(probe[name] > 0 for name in ("read_gb_per_s", "int8_gop_per_s"))
    [check] = data["checks"]
    assert check["passed"]
    assert check["rungs"][-1]["name"] == "alone = batch of 3"
    conditions = data["conditions"]
    for name in (
        "date", "cpu", "cpus", "platform", "headrace", "numerics_id", "model", "weights",
        "activations", "kv_format", "threads", "isa", "model_load_included", "warm_up_included",
        "device_synchronised", "repetitions", "load_average_1min", "load_average_after",
    ):  # fmt: skip
        assert conditions[name] is not None, name
    assert conditions["weights"] == ["F32", "Q4_1", "Q6_K"]
    assert conditions["activations"] == ["f32", "int8"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        (
            "cache-position",
            1,
            "No speed is printed, because this configuration computes wrong: fai",
        ),
        ("noise-key", 2, "The quick check does not see the fault noise-key"),
    ],
)
def test_run_prints_no_speed_where_a_fault_is_planted(
    fault: str, code: int, message: str, tmp_path: Path
) -> None:
    model = str(tiny_models.build("llama", tmp_path))
    result = bench("run", model, *SMALL, "--inject", fault, "-o", "json")
    assert result.returncode == code
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.models
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-p", "9000"), 2, "pp9000 needs a context of 9001 tokens"),
        (("-npl", "0"), 2, "-npl 0 is out of range"),
        (("-n", "many"), 2, "-n takes whole numbers with commas, not 'many'"),
        (("-o", "xml"), 2, "--output must be one of table, md, csv, json, not 'xml'"),
        (("-r", "0"), 2, "-r 0 is out of range"),
        (("-p", "0", "-n", "0"), 2, "nothing to measure"),
        (("-npl", "4000", "-p", "4000"), 1, "4000 sequences of 4145 tokens need"),
        (("-t", "0"), 2, "num_threads = 0 is out of range"),
        (("--kv-cache-dtype", "int3"), 2, "kv_cache_dtype = 'int3' is unknown"),
        (("--isa", "neon"), 2, "isa='neon' is not a level this CPU runs"),
        (("--inject", "gremlin"), 2, "There is no fault 'gremlin'"),
    ],
)
def test_run_refuses_with_one_sentence(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = headrace("bench", "run", "smollm2-135m", *arguments, "--offline")
    assert result.returncode == code
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
