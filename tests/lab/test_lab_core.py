"""What all experiments share: intervals, verdicts, the run and its files, the report."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.errors import UsageError
from headrace.lab import report as report_module
from headrace.lab import runner
from headrace.lab.experiment import Experiment
from headrace.lab.findings_page import cell, interval, number
from headrace.lab.lab import Lab, Settings
from headrace.lab.progress import Progress, Report
from headrace.lab.result import read_result
from headrace.lab.runner import run
from headrace.lab.statistics import (
    Interval,
    exact,
    fit_line,
    fit_power,
    largest,
    mean_interval,
    median_interval,
    ratio_interval,
    resolved,
    share_interval,
    t95,
)
from headrace.lab.values import Check, Findings, Kind, Prediction, Table, Verdict, verdict

# ---- intervals ----------------------------------------------------------------------------------


def test_t_quantiles_are_those_of_the_tables() -> None:
    """Abramowitz and Stegun, table 26.10."""
    for degrees, quantile in ((1, 12.706), (5, 2.571), (30, 2.042), (40, 2.021), (60, 2.000),
                              (120, 1.980)):  # fmt: skip
        assert t95(degrees) == pytest.approx(quantile, abs=1e-3)
    assert t95(0) == math.inf


@pytest.mark.parametrize(("n", "least"), [(6, 0.95), (15, 0.95), (40, 0.95), (3, 0.72)])
def test_median_intervals_hold_the_median_as_often_as_they_say(n: int, least: float) -> None:
    draws = random.Random(n)
    held = 0
    for _ in range(2000):
        found = median_interval([draws.expovariate(1) for _ in range(n)])
        held += found.low <= math.log(2) <= found.high
    assert held / 2000 >= least - 0.015


def test_mean_intervals_hold_the_mean_as_often_as_they_say() -> None:
    draws = random.Random(0)
    held = 0
    for _ in range(2000):
        found = mean_interval([draws.gauss(3, 2) for _ in range(4)])
        held += found.low <= 3 <= found.high
    assert 0.935 <= held / 2000 <= 0.965


def test_one_sample_has_no_width_that_could_be_known() -> None:
    assert mean_interval([2.0]).high == math.inf
    assert mean_interval([2.0]).to_dict()["high"] is None
    assert median_interval([2.0]) == Interval(2.0, -math.inf, math.inf, 1, "one sample")
    for empty in (median_interval, mean_interval):
        with pytest.raises(ValueError, match="no samples"):
            empty([])


def test_shares_have_wilsons_interval() -> None:
    """The example of 15 of 20 worked by hand: centre 0.7098, half width 0.1775."""
    found = share_interval(15, 20)
    assert (found.low, found.high) == pytest.approx((0.5313, 0.8881), abs=1e-3)
    assert share_interval(0, 5).low == 0
    assert share_interval(5, 5).high == 1


def test_growth_is_found_again_as_often_as_its_interval_says() -> None:
    noise = random.Random(1)
    x = [128.0, 256.0, 512.0, 1024.0, 2048.0]
    held = 0
    for _ in range(1000):
        y = [3e-6 * v**1.7 * math.exp(noise.gauss(0, 0.02)) for v in x]
        fit = fit_power(x, y)
        held += fit.exponent.low < 1.7 < fit.exponent.high
        assert fit.at(512) == pytest.approx(3e-6 * 512**1.7, rel=0.1)
    assert 0.93 <= held / 1000 <= 0.97


def test_a_line_needs_two_different_places() -> None:
    slope, intercept = fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    assert (slope.value, intercept) == pytest.approx((2.0, 1.0))
    with pytest.raises(ValueError, match="two different x"):
        fit_power([2.0, 2.0], [1.0, 2.0])


def test_resolved_only_when_disjoint() -> None:
    a, b = Interval(1, 0.5, 1.5, 3, ""), Interval(2, 1.4, 2.6, 3, "")
    assert not resolved(a, b)
    assert resolved(a, Interval(2, 1.6, 2.6, 3, ""))
    assert ratio_interval([2, 4, 9], [1, 2, 3]) == Interval(2, 2, 3, 3, "median and range (75 %)")


def test_an_error_that_is_no_number_is_the_largest() -> None:
    assert largest([0.5, math.nan, 2.0]) == math.inf
    assert largest([0.5, 2.0]) == 2.0
    assert largest([]) == 0.0


def test_intervals_as_text_in_other_units_and_their_quotients() -> None:
    a, b = Interval(6, 4, 9, 5, "range"), Interval(2, 1, 3, 3, "range")
    assert f"{a.scaled(0.5):.1f}" == "3.0 (2.0 … 4.5)"
    assert a.over(b) == Interval(3, 4 / 3, 9, 3, "quotient of the ends of two: range")


# ---- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        (Kind.VALUE, 9, 11, Verdict.HOLDS),
        (Kind.VALUE, 11, 14, Verdict.NOT_RESOLVED),
        (Kind.VALUE, 13, 14, Verdict.REFUTED),
        (Kind.AT_MOST, 1, 12, Verdict.HOLDS),
        (Kind.AT_MOST, 13, 14, Verdict.REFUTED),
        (Kind.AT_LEAST, 1, 7, Verdict.REFUTED),
        (Kind.AT_LEAST, 7, 99, Verdict.NOT_RESOLVED),
    ],
)
def test_verdicts_judge_the_whole_interval(
    kind: Kind, low: float, high: float, expected: Verdict
) -> None:
    prediction = Prediction("k", "speed", 10.0, "ms", "by hand", kind, tolerance=1.25)
    assert verdict(prediction, Interval((low + high) / 2, low, high, 5, "")) is expected


def test_what_was_not_measured_is_not_judged() -> None:
    prediction = Prediction("k", "w", 0.0, "", "h", slack=1e-9)
    assert verdict(prediction, None) is Verdict.NOT_MEASURED
    assert verdict(prediction, exact(0.0)) is Verdict.HOLDS
    assert verdict(prediction, exact(1e-6)) is Verdict.REFUTED
    nan = Interval(math.nan, math.nan, math.nan, 1, "")
    assert verdict(prediction, nan) is Verdict.NOT_RESOLVED


# ---- numbers on the page ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (1234567.0, "1.23e+06"), (12345.6, "12,346"), (3.14159, "3.14"),
     (0.0123, "0.0123"), (-0.5, "-0.500"), (1e-9, "1.00e-09")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_cells() -> None:
    assert [cell(v) for v in (None, 12345, True, "a|b\nc")] == ["—", "12,345", "yes", "a\\|b c"]
    assert interval({"value": 2.0, "low": None, "high": 3.0}) == "2.00 (−∞ … 3.00)"
    assert interval(exact(4.0).to_dict()) == "4.00"


# ---- a run --------------------------------------------------------------------------------------


class Dice(Experiment):
    """The mean of dice: an experiment that needs no model."""

    name = "dice"
    title = "Dice"
    question = "What is the mean of a die?"
    claim = "3.5 <script>alert(1)</script>"
    quick_s = 1.0
    full_s = 2.0
    faults: ClassVar = ("row-swap",)
    try_this = ("Throw `more` dice.",)
    fair: ClassVar = True

    def predict(self, lab: Lab) -> list[Prediction]:
        return [Prediction("mean", "mean of a die", 3.5, "pips", "(1 + 6) / 2", tolerance=1.1)]

    def check(self, lab: Lab) -> list[Check]:
        assert json.loads((lab.out / "prediction.json").read_text())["predictions"]
        return [Check("six sides", self.fair, "6 of 6")]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        throws = lab.random().integers(1, 7, 4000).tolist()
        with lab.stage("drawing", 0.5), lab.figure("dice", "Throws.", "bars") as (_, axes):
            axes.hist(throws)
        findings = Findings({"mean": mean_interval(throws)})
        findings.tables.append(Table("throws", ["n", "best"], [[4000, None]]))
        findings.conclude("the mean is near 3.5", resolved=False)
        return findings


class Loaded(Dice):
    fair = False

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        raise AssertionError("measured although a check failed")


def test_a_run_writes_everything(tmp_path: Path) -> None:
    heard: list[Report] = []
    result = run(Dice(), Settings(quick=True, threads=1), tmp_path, listener=heard.append)
    data = read_result(tmp_path / "dice").data
    assert data == result.data
    assert data["predictions"][0]["verdict"] == "holds"
    assert data["conditions"]["threads"] == 1
    page = (tmp_path / "dice" / "findings.md").read_text()
    for said in ("KV in bf16", "without model load and warm-up", "Headrace ", " threads"):
        assert said in page.split("**Conditions.**")[1]
    assert "**Not resolved:** the mean is near 3.5" in page
    assert "![bars](dice.png)" in page
    assert (tmp_path / "dice" / "dice.png").read_bytes().startswith(b"\x89PNG")
    assert [r.share for r in heard] == sorted(r.share for r in heard)
    assert heard[-1].share == pytest.approx(1.0)
    assert heard[-1].left_s == pytest.approx(0.0, abs=1e-6)


def test_the_result_before_is_kept_and_nothing_half_written_stays(tmp_path: Path) -> None:
    run(Dice(), Settings(seed=1), tmp_path)
    first = read_result(tmp_path / "dice").data
    run(Dice(), Settings(seed=2), tmp_path)
    assert read_result(tmp_path / "dice.previous").data == first

    class Broken(Dice):
        def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Broken(), Settings(), tmp_path)
    assert read_result(tmp_path / "dice").data["conditions"]["seed"] == 2
    assert {p.name for p in tmp_path.iterdir()} == {"dice", "dice.previous"}


def test_a_failed_check_ends_the_run(tmp_path: Path) -> None:
    result = run(Loaded(), Settings(), tmp_path)
    assert not result.passed
    assert result.data["predictions"][0]["verdict"] == "not measured"
    assert "nothing was measured" in (tmp_path / "dice" / "findings.md").read_text()


def test_a_planted_fault_is_told_whether_a_check_noticed_it_or_not(tmp_path: Path) -> None:
    for experiment, words in (
        (Loaded(), "A check failed, as it must with the fault row-swap planted; nothing was"),
        (Dice(), "No check noticed the planted fault row-swap: the figures are of a wrong"),
    ):
        run(experiment, Settings(inject="row-swap"), tmp_path)
        assert words in (tmp_path / "dice" / "findings.md").read_text()


def test_a_fault_that_the_check_does_not_look_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not look for the fault noise-key; it looks for row"):
        run(Dice(), Settings(inject="noise-key"), tmp_path)


def test_the_report_is_one_page_without_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Dice(), Settings(), tmp_path)
    monkeypatch.setattr(report_module, "EXPERIMENTS", {"dice": ("", "")})
    page = report_module.report(tmp_path)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "data:image/png;base64," in page
    assert "<code>more</code>" in page
    assert "http" not in page.replace("http-equiv", "")
    (tmp_path / "dice" / "dice.png").write_bytes(b"GIF89a")
    with pytest.raises(UsageError, match="no PNG"):
        report_module.report(tmp_path)


def test_a_report_of_a_damaged_result_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every field in turn lost, or of another type; and pictures that would never end."""
    data = run(Dice(), Settings(), tmp_path).data
    monkeypatch.setattr(report_module, "EXPERIMENTS", {"dice": ("", "")})
    file = tmp_path / "dice" / "result.json"
    for key in data:
        for damaged in ({k: v for k, v in data.items() if k != key}, data | {key: [7]}):
            file.write_text(json.dumps(damaged))
            with contextlib.suppress(UsageError):
                report_module.report(tmp_path)
    figure = data["figures"][0]
    for value in (
        {"seconds": 10**400},  # no float
        {"figures": [figure] * 1000},
        {"figures": [figure | {"file": "../dice/dice.png"}]},
        {"figures": [figure | {"file": "\x1b[2J.png"}]},
    ):
        file.write_text(json.dumps(data | value))
        with pytest.raises(UsageError, match="is damaged") as caught:
            report_module.report(tmp_path)
        assert str(caught.value).isprintable()
    file.write_text(json.dumps(data | {"experiment": "../../else"}))
    with pytest.raises(UsageError, match="is a result of another experiment"):
        report_module.report(tmp_path)
    file.write_text(json.dumps(data))
    (tmp_path / "dice" / "dice.png").unlink()
    os.mkfifo(tmp_path / "dice" / "dice.png")
    with pytest.raises(UsageError, match="not a regular file"):
        report_module.report(tmp_path)


def test_runs_that_end_at_once_leave_the_last_and_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "dice.previous").symlink_to(tmp_path / "nowhere")
    with ThreadPoolExecutor(8) as pool:
        for seed in range(40):
            pool.submit(_place, tmp_path, seed)
    assert {p.name for p in tmp_path.iterdir()} == {"dice", "dice.previous"}
    seeds = {(tmp_path / name / "seed").read_text() for name in ("dice", "dice.previous")}
    assert len(seeds) == 2


def test_what_killed_runs_left_goes_with_the_next_and_what_runs_stays(tmp_path: Path) -> None:
    left, alive, other = (tmp_path / name for name in (".dice.killed00", ".dice.alive000", ".die"))
    for directory in (left, alive, other):
        directory.mkdir()
        (directory / "prediction.json").touch()
    (tmp_path / ".dice.linked00").symlink_to(other)
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)

    class Looking(Dice):
        def check(self, lab: Lab) -> list[Check]:
            runner._sweep(tmp_path, "dice")  # another run begins
            return super().check(lab)

    run(Looking(), Settings(), tmp_path)
    os.close(handle)
    assert not left.exists()
    assert (alive / "prediction.json").exists()
    assert (other / "prediction.json").exists()
    assert (tmp_path / "dice" / "result.json").exists()


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path: Path) -> None:
    run(Dice(), Settings(), tmp_path)

    class Full(Dice):
        def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
            lab.spent.append(spent)
            Path("/dev/full").write_text("no room")
            raise AssertionError("written to a full disk")

    spent = tmp_path / "checkpoints"
    spent.mkdir()
    with pytest.raises(UsageError, match=r"cannot be written below .*: No space left on device"):
        run(Full(), Settings(), tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"dice", "checkpoints"}


def _place(out: Path, seed: int) -> None:
    work = out / f".dice.{seed}"
    work.mkdir()
    (work / "seed").write_text(str(seed))
    runner._replace(work, out / "dice")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"format": 0, "experiment": "dice"}', "[" * 100_000, "9" * 5000]
)
def test_a_damaged_result_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UsageError, match="run the experiment again"):
        read_result(tmp_path)


def test_results_are_json_whatever_numpy_gave(tmp_path: Path) -> None:
    class Odd(Dice):
        def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
            findings = super().measure(lab, predicted)
            value: Any = lab.random().normal(size=1)[0]
            findings.tables.append(Table("odd", ["x"], [[value], [math.inf]]))
            return findings

    data = run(Odd(), Settings(), tmp_path).data
    assert data["tables"][-1]["rows"][1] == [None]
    json.loads((tmp_path / "dice" / "result.json").read_text())


def test_a_table_whose_row_does_not_fit_is_our_bug() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Table("t", ["a", "b"], [[1]])


def test_stages_share_what_is_left() -> None:
    heard: list[float] = []
    progress = Progress("x", 10.0, lambda report: heard.append(report.share))
    with progress.stage("a", 0.5):
        progress.tell("half of it", 0.5)
        with progress.stage("b", 0.5):
            pass
    with progress.stage("c", 0.5):
        pass
    assert heard == pytest.approx([0.0, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0])


def test_a_run_that_breaks_off_claims_no_progress() -> None:
    heard: list[float] = []
    progress = Progress("x", 10.0, lambda report: heard.append(report.share))

    def broken_off() -> None:
        with progress.stage("a", 1.0), progress.stage("b", 0.5):
            progress.tell("a fifth of it", 0.2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert heard == pytest.approx([0.0, 0.0, 0.1])
