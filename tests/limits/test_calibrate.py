"""Calibrating for real, on models small enough for a test; and keeping what was found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.limits import calibrate as room
from headrace.limits.calibrate import Host, calibrate
from headrace.limits.calibrations import (
    calibration_path,
    find_calibration,
    kernel_version,
    load_calibration,
    save_calibration,
)
from headrace.limits.estimate import Calibration, Curve, estimate
from headrace.limits.rates import MachineRates
from headrace.limits.synthetic import Shape, synthetic_model
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.quant.formats import FORMATS

RATES = MachineRates(1e11, 1e12, 5e11, 2e11, 2, "avx512", 1 << 25)


def test_synthetic_models_have_the_wanted_size_and_format() -> None:
    for name in ("Q4_K", "Q8_0", "F32"):
        model = synthetic_model(Shape(), FORMATS[name], 256 << 20)
        size = sum(w.num_bytes for w in model.weights.values())
        assert size == pytest.approx(256 << 20, rel=0.15)
        matrices = {w.format.name for w in model.weights.values() if w.rows > 1}
        assert matrices == {name}


def test_a_small_calibration_knows_every_class_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "FEW_ROWS": (1, 4),
        "MANY_ROWS": (32,),
        "MOST_ROWS": 64,
        "HEAD_DIMS": (64,),
        "DECODES": ((2, 1, 128),),
        "PROMPTS": ((1, 32, 64),),
        "VOCABULARIES": (512, 2048),
        "SEQUENCES": (1, 4),
        "REPETITIONS": 1,
        "_LEAST_BYTES": 1 << 20,
        "_MOST_BYTES": 1 << 20,
    }.items():
        monkeypatch.setattr(room, name, value)
    told: list[tuple[str, float]] = []
    found = calibrate(
        Host("a processor", lambda: 0.0),
        1,
        formats=("Q4_K", "F16"),
        notice=lambda text, done: told.append((text, done)),
    )
    assert set(found.curves) == {"linear Q4_K", "linear F16", "attend 64", "row_wise"}
    assert found.curves["linear F16"].rows == (1, 4, 32)
    assert found.curves["attend 64"].rows == (1, 32)
    assert (found.cpu, found.num_threads) == ("a processor", 1)
    assert found.version == kernel_version()
    # A machine that falters in the one repetition may give one of these what belongs to another.
    costs_s = (found.step_s, found.sequence_s, found.logit_s)
    assert min(costs_s) >= 0
    assert max(costs_s) > 0
    assert found.op_s > 0
    assert [done for _, done in told] == sorted(done for _, done in told)
    assert told[0][1] == 0
    assert told[-1][1] < 1
    costs = CostModel(synthetic_model(Shape(), FORMATS["Q4_K"], 1))
    seconds = estimate(costs.step([Chunk(1, 100)]), RATES, found)
    assert math.isfinite(seconds)
    assert Calibration.from_dict(json.loads(json.dumps(found.to_dict()))).curves == found.curves


# ---- on disk ------------------------------------------------------------------------------------

KNOWN = Calibration(
    cpu="a processor",
    num_threads=2,
    isa="avx512",
    version=kernel_version(),
    date="2026-01-01",
    curves={"row_wise": Curve((1, 8), (0.5, 0.25))},
    op_s=1e-6,
    step_s=1e-4,
    sequence_s=1e-5,
    logit_s=1e-10,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def test_a_calibration_is_found_for_its_machine_alone() -> None:
    assert find_calibration("a processor", 2, "avx512") is None
    path = save_calibration(KNOWN)
    assert path == calibration_path("a processor", 2, "avx512")
    found = find_calibration("a processor", 2, "avx512")
    assert found is not None
    assert found.curves == KNOWN.curves
    assert find_calibration("a processor", 1, "avx512") is None
    assert find_calibration("a processor", 2, "avx2") is None
    assert find_calibration("another", 2, "avx512") is None
    save_calibration(replace(KNOWN, date="2026-02-02"))
    again = find_calibration("a processor", 2, "avx512")
    assert again is not None
    assert again.date == "2026-02-02"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b" " * (1 << 21)]
)
def test_a_damaged_file_is_named(content: bytes) -> None:
    path = save_calibration(KNOWN)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="calibrate anew") as error:
        find_calibration("a processor", 2, "avx512")
    assert str(path) in str(error.value)


def test_a_place_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        save_calibration(KNOWN, blocked / "below.json")
    with pytest.raises(UsageError, match="cannot be read"):
        load_calibration(tmp_path / "none.json")
