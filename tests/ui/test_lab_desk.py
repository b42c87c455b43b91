"""The desk of the lab: what it reads, what it never reads, and what it hears of a run."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.lab import ProgressLine
from headrace.errors import UsageError
from headrace.lab.catalog import EXPERIMENTS
from headrace.lab.progress import Report
from headrace.ui.facts import findings
from headrace.ui.facts.lab_desk import LabDesk, Run
from live_server import ROOT

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
RESULT: dict[str, Any] = {
    "format": 1, "experiment": "one", "passed": True, "started": "2026-01-02T03:04:05+00:00",
    "predictions": [
        {"what": "speed", "verdict": "holds", "kind": "at least", "value": 2.0, "unit": "×",
         "band": [1.8, None], "measured": {"value": 2.5, "low": 2.25, "high": None},
         "how": "by hand"},
        {"what": "size", "verdict": "refuted", "kind": "value", "value": 1234567, "unit": "",
         "band": [1234567, 1234567], "measured": None, "how": ""},
    ],
    "conclusions": [{"text": "It is so.", "resolved": True}, {"text": "or not", "resolved": False}],
    "figures": [{"file": "a.png", "caption": "c", "alt": "d"}],
    "tables": [{"name": "t", "columns": ["a", "b"], "rows": [["x", 0.00123], ["y", None]]}],
    "conditions": {"cpu": {"cores": 2}, "models": ["m", "n"]},
}  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> LabDesk:
    results = tmp_path / "results"
    (results / "one").mkdir(parents=True)
    (results / "one" / "result.json").write_text(json.dumps(RESULT))
    (results / "one" / "a.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b.png").write_bytes(PNG)
    (results / "one" / "link.png").symlink_to(tmp_path / "secret.png")
    (results / "linked").symlink_to(tmp_path / "outside")
    (results / "one" / "text.png").write_text("no picture")
    (results / "one" / "dir.png").mkdir()
    return LabDesk(results)


def test_pictures_come_out_of_results_only(desk: LabDesk) -> None:
    assert desk.figure("one", "a.png") == PNG
    for name, file in (
        ("one", "link.png"), ("linked", "b.png"), ("one", "../../secret.png"), ("..", "secret.png"),
        ("one", "text.png"), ("one", "dir.png"), ("one", "result.json"), ("one", "none.png"),
        ("one/..", "a.png"), ("", "a.png"), (".", "a.png"), ("one", "a.png\x00"), ("one", ".png"),
        ("one\x00", "a.png"), ("/", "a.png"), ("one", "/etc/passwd"), ("one", "a" * 200 + ".png"),
    ):  # fmt: skip
        assert desk.figure(name, file) is None, (name, file)


def test_a_result_is_read_or_refused_in_one_sentence(desk: LabDesk) -> None:
    assert desk.result("one") == RESULT
    assert desk.result("none") is None
    assert desk.result("../outside") is None
    for text in ("{", "[]", '{"format": 99}', "[" * 100_000):
        (desk.directory / "one" / "result.json").write_text(text)
        with pytest.raises(UsageError, match="run it again"):
            desk.result("one")


def test_findings_are_texts() -> None:
    assert findings.headline(RESULT) == "1 hold, 1 refuted · 2026-01-02 03:04"
    assert findings.prediction_rows(RESULT) == [
        ["speed", "✓ holds", "≥ 2.00 ×", "≥ 1.80", "2.50 (2.25 … ∞)", "by hand"],
        ["size", "✗ refuted", "1,234,567", "1,234,567", "—", ""],
    ]
    assert [findings.band(ends) for ends in ([None, 2.5], [1.0, 2.5], [None, None], None)] == [
        "≤ 2.50", "1.00 … 2.50", "—", "—"
    ]  # fmt: skip
    assert findings.conclusions(RESULT) == ["It is so.", "Not resolved: or not"]
    assert findings.tables(RESULT)[0][2] == [["x", "0.00123"], ["y", "—"]]
    assert findings.condition_lines(RESULT) == ["cpu: cores 2", "models: m; n"]
    failed = RESULT | {"passed": False, "inject": "skipped-norm"}
    assert findings.headline(failed).startswith("✗ a check failed (fault planted: skipped-norm)")
    for odd in (
        {},
        {"passed": True, "predictions": None, "tables": [3], "conditions": 4},
        {
            "passed": True,
            "predictions": 7,
            "tables": [{"rows": [7, 8], "columns": 9}],
            "figures": 1,
        },
    ):
        findings.tables(odd)
        findings.figures(odd)
        findings.headline(odd)
        assert findings.prediction_rows(odd) == findings.condition_lines(odd) == []


def test_findings_of_any_file_are_bounded_texts_that_can_be_sent() -> None:
    deep: Any = []
    for _ in range(300):
        deep = {"a": [deep]}
    odd = [None, True, 7, 10**400, math.nan, -math.inf, "\ud800", "x" * 10**5, deep, {}, [deep]]
    odd += [[value] for value in odd] + [[0] * 5000]
    keys = [*RESULT, "inject", "notes", "try_this", "checks"]
    rows = [{"columns": ["a", "b"], "rows": [[1], [1, 2, 3], deep, 4], "name": deep, "note": 1}]
    hostile = [RESULT | {key: value} for key in keys for value in odd] + [RESULT | {"tables": rows}]
    for one in RESULT["predictions"], RESULT["figures"], RESULT["tables"]:
        name = next(key for key in RESULT if RESULT[key] is one)
        hostile += [RESULT | {name: [one[0] | {k: v}]} for k in one[0] for v in odd]
    for result in hostile:
        found = findings.tables(result)
        assert all(len(row) == len(columns) for _, columns, rows, _ in found for row in rows)
        shown = [findings.headline(result), findings.prediction_rows(result), found,
                 findings.check_rows(result), findings.conclusions(result),
                 findings.figures(result), findings.condition_lines(result),
                 findings.lines(result, "notes"), findings.lines(result, "try_this")]  # fmt: skip
        assert len(json.dumps(shown, ensure_ascii=False).encode()) < 10**6


def test_it_understands_the_progress_that_the_lab_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Run("roofline")
    with ProgressLine() as line:
        line.show(Report("roofline", 0.374, 95.2, "measuring: repetition 3 of 5"))
    run.hear(capsys.readouterr().err.strip())
    assert (run.share, run.left_s, run.text) == (0.37, 95.0, "measuring: repetition 3 of 5")
    run.hear("Error: The lab needs torch: pip install 'headrace[lab]'.")
    run.status = 2
    assert run.problem is not None
    assert "needs torch" in run.problem
    run.status = 1
    assert run.problem is None, "a failed check is a result"


def test_experiments_are_the_labs_and_a_run_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    async def go() -> None:
        desk = LabDesk(tmp_path)
        names = [one["name"] for one in await desk.experiments()]
        assert names == list(EXPERIMENTS)
        with pytest.raises(UsageError, match="no experiment"):
            await desk.begin("--help")
        with pytest.raises(UsageError, match="does not look for"):
            await desk.begin("roofline", "--out")
        for model in ("--out", "../model", "/etc/passwd", "a b", "", "x" * 81, "a\n"):
            with pytest.raises(UsageError, match="named here as in"):
                await desk.begin("roofline", model=model)
        await desk.begin("roofline")
        with pytest.raises(UsageError, match="one goes on at a time"):
            await desk.begin("roofline")
        assert desk.run is not None
        await desk.stop()
        assert desk.run.ended
        assert desk.run.stopped
        assert desk.run.problem is None
        assert not re.search("result", " ".join(str(p) for p in tmp_path.rglob("*")))

    asyncio.run(go())


@pytest.mark.ui  # with the pages: it starts the lab twice
def test_what_the_lab_says_is_said_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    async def go() -> None:
        desk = LabDesk(tmp_path)
        with pytest.raises(UsageError, match="holds no results"):
            await desk.report()
        await desk.begin("roofline", None, "no-such-model", quick=False)
        while desk.busy:
            await asyncio.sleep(0.05)
        assert desk.run is not None
        assert str(desk.run.problem).startswith("there is no model 'no-such-model'")

    asyncio.run(go())


def test_a_run_lives_on_when_its_page_is_closed_and_ends_when_stopped_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    async def go() -> None:
        desk = LabDesk(tmp_path)
        await desk.experiments()
        page = asyncio.create_task(desk.begin("roofline"))
        await asyncio.sleep(0)
        page.cancel()
        await asyncio.wait([page])
        assert desk.busy
        await asyncio.gather(desk.stop(), desk.stop())
        assert not desk.busy, "nobody could run anything any more"
        await desk.begin("roofline")
        await desk.stop()
        assert desk.run is not None
        assert desk.run.stopped
        assert desk.run.ended

    asyncio.run(go())
