"""A whole measurement of a tiny model: what is repeated, probed, profiled and reported."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

import tiny_models
from headrace.bench.cases import Plan
from headrace.bench.report import render, to_dict
from headrace.bench.run import run_bench
from headrace.bench.setup import Settings
from headrace.engine.model import OpenModel, open_model
from headrace.errors import CapacityError, UsageError
from headrace.native import core

pytestmark = pytest.mark.torch


@cache
def tiny() -> OpenModel:
    return open_model(str(tiny_models.build("gemma3", Path(mkdtemp()))))


def test_threads_cases_probes_and_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    # Probing with the real buffer takes most of the time of this test.
    monkeypatch.setattr("headrace.limits.machine.CACHE_MULTIPLE", 1)
    isa = core().available_isas()[0]
    plan = Plan((24,), (4,), (9,), (1, 2), repetitions=2)
    notices: list[str] = []
    result = run_bench(tiny(), plan, Settings((2, 1, 2), "f32", isa, ops=True), notices.append)
    data = to_dict(result)
    assert data == json.loads(render(result, "json"))
    assert [(r["threads"], r["test"], r["batch"], r["depth"]) for r in data["rows"]] == [
        (threads, test, batch, depth)
        for threads in (2, 1)
        for batch, tests in ((1, ("pp24", "tg4")), (2, ("pp24+tg4", "pp24", "tg4")))
        for depth in (9,)
        for test in tests
    ]
    assert all(len(row["values"]) == 2 for row in data["rows"])
    assert [(p["threads"], p["isa"], p["num_probes"]) for p in data["probes"]] == [
        (2, isa, 7), (1, isa, 7),  # around 2 repetitions of 3 cases
    ]  # fmt: skip
    for check in data["checks"]:
        assert check["passed"]
        assert check["conditions"]["isa"] == isa
        assert check["conditions"]["kv_format"] == "f32"
    # A prompt, a decode step, and both for the batch; two thread counts.
    assert len(data["ops"]) == 2 * 4
    for table in data["ops"]:
        assert sum(op["share"] for op in table["ops"]) == pytest.approx(1.0)
    conditions = data["conditions"]
    assert conditions["weights"] == ["F32"]
    assert conditions["activations"] == ["f32"]
    assert conditions["threads"] == [2, 1]
    assert conditions["isa"] == isa
    assert "2 threads: probing the machine" in notices
    assert "1 threads: repetition 2 of 2: pp24+tg4 @9 ×2" in notices


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    notices: list[str] = []
    most = tiny().program.max_context
    with pytest.raises(
        UsageError, match=rf"needs a context of {most + 1} tokens, .* has {most}\.$"
    ):
        run_bench(tiny(), Plan((most,), (0,)), Settings(), notices.append)
    with pytest.raises(CapacityError, match=r"^8 sequences of \d+ tokens need .* lower -npl"):
        run_bench(
            tiny(), Plan((100,), (4,), batches=(8,)), Settings(kv_cache_memory="64KiB"),
            notices.append,
        )  # fmt: skip
    assert notices == []
