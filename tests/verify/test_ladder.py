"""Results and reports: what counts as equal, what counts as passed, what the JSON holds."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.verify import ladder
from headrace.verify.exact import EXACT_RUNGS
from headrace.verify.result import RungResult, difference
from headrace.verify.subject import Subject
from small_program import small_program

KEY = (0, 0, 5)


def row(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("expected", "actual", "error"),
    [
        (row(1.0, 2.0), row(1.0, 2.0), 0.0),
        (row(1.0, 2.0), row(1.0, 2.5), 0.5),
        (row(1.0, 0.0), row(1.0, -0.0), math.inf),  # equal numbers, other bits
        (row(1.0, 2.0), row(1.0, math.nan), math.inf),
        (row(1.0, math.nan), row(1.0, math.nan), 0.0),  # one and the same NaN
    ],
)
def test_difference_compares_bits(expected: object, actual: object, error: float) -> None:
    assert difference({KEY: expected}, {KEY: actual}) == error  # type: ignore[dict-item]


def test_a_missing_row_is_no_equality() -> None:
    assert difference({KEY: row(1.0)}, {}) == math.inf
    assert difference({}, {KEY: row(1.0)}) == 0.0


@pytest.mark.parametrize(
    ("error", "events", "bound", "passed"),
    [
        (0.0, 1, 0.0, True),
        (0.0, 0, 0.0, False),  # nothing happened, nothing was tested
        (1e-9, 1, 0.0, False),
        (0.5, 3, 1.0, True),
        (1.5, 3, 1.0, False),
        (math.nan, 3, 1.0, False),
    ],
)
def test_judge(error: float, events: int, bound: float, passed: bool) -> None:
    result = RungResult.judge("rung", error, events, bound=bound)
    assert result.passed is passed
    assert result.exact is (bound == 0.0)
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_rung_that_raises_has_failed_and_the_next_ones_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(subject: Subject) -> RungResult:
        raise RuntimeError("the step failed")

    names = ("whole = chunked", "one thread = n")
    rungs = {names[0]: broken, names[1]: EXACT_RUNGS[names[1]]}
    monkeypatch.setattr(ladder, "EXACT_RUNGS", rungs)
    program = small_program()
    seen: list[str] = []
    report = ladder.run_ladder(
        Subject(program, program.vocab_size), reference=False, on_start=seen.append
    )
    assert seen == list(names)
    assert [r.passed for r in report.rungs] == [False, True]
    assert "the step failed" in report.rungs[0].detail
    assert not report.passed


def test_the_report_as_json() -> None:
    program = small_program()
    report = ladder.run_ladder(
        Subject(program, program.vocab_size, num_threads=2),
        reference=False,
        only=lambda name: name == "whole = chunked",
    )
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["passed"] is True
    (rung,) = data["rungs"]
    assert {"name", "exact", "max_abs_error", "bound", "events", "passed"} <= set(rung)
    assert (rung["name"], rung["exact"], rung["max_abs_error"]) == ("whole = chunked", True, 0.0)
    assert data["conditions"]["kv_format"] == "bf16"
    assert data["conditions"]["threads"] == 2
    assert data["conditions"]["numerics_id"] == "headrace-1/tile128/segment512"


def test_what_did_not_run_is_named_and_nothing_is_not_a_pass() -> None:
    program = small_program()
    subject = Subject(program, program.vocab_size)
    report = ladder.run_ladder(
        subject, reference=False, only=lambda name: name in ladder.REFERENCE_RUNGS
    )
    assert set(report.not_run) == set(ladder.REFERENCE_RUNGS)
    assert not report.passed


def test_without_torch_the_report_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "has_reference", lambda: False)
    program = small_program()
    report = ladder.run_ladder(
        Subject(program, program.vocab_size),
        only=lambda name: name in ("whole = chunked", "op by op"),
    )
    assert report.passed
    assert "pip install 'headrace[torch]'" in report.not_run["op by op"]


def test_exact_rungs_import_no_torch() -> None:
    script = """
import sys
from headrace.verify.ladder import run_ladder
from headrace.verify.subject import Subject
from small_program import small_program
program = small_program()
subject = Subject(program, program.vocab_size, num_threads=1)
assert run_ladder(subject, reference=False, only=lambda name: "chunked" in name).passed
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_context_too_short_to_verify_is_refused() -> None:
    program = dataclasses.replace(small_program(), max_context=100)
    with pytest.raises(UsageError, match="context of 100 positions is too short to verify"):
        Subject(program, program.vocab_size).check()


def test_every_rung_says_what_its_failure_suggests() -> None:
    assert set(ladder.SYMPTOMS) == {*EXACT_RUNGS, *ladder.REFERENCE_RUNGS}
