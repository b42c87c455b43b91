"""docs/performance.md and README's table are what tools/write_performance.py makes of
docs/performance.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "write_performance.py"
MODEL = "qwen2.5-coder-0.5b"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import performance_page

    return performance_page


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import write_performance

    return write_performance


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )  # fmt: skip


def comparison(test: str, ours: list[float], theirs: list[float], bound: float) -> dict[str, Any]:
    """The parts of a recorded comparison that the page reads."""
    return {
        "conditions": {
            "cpu": "A CPU", "threads": 2, "isa": "avx512", "python": "3.11", "platform": "Linux",
            "date": "2026-11-29", "git_commit": "abc", "repetitions": len(ours),
        },
        "probe": {"read_gb_per_s": 75.0, "int8_gop_per_s": 2100.0, "bf16_gop_per_s": 1000.0},
        "engines": [
            {"engine": "headrace", "title": "Headrace", "facts": {}, "reason": None},
            {"engine": "llama-cpp-python", "title": "llama.cpp", "facts": {"version": "v1"},
             "reason": None},
            {"engine": "openvino-genai", "title": "OpenVINO GenAI", "facts": {},
             "reason": "It cannot read this."},
        ],
        "tests": [
            {"test": test, "tokens": 512, "bound_tok_per_s": bound, "engines": [
                {"engine": "headrace", "title": "Headrace", "rates": ours},
                {"engine": "llama-cpp-python", "title": "llama.cpp", "rates": theirs},
            ]}
        ],
    }  # fmt: skip


def test_the_committed_page_is_generated(tmp_path: Path) -> None:
    made = tmp_path / "performance.md"
    result = run_tool("--page", "--output", str(made))
    assert result.returncode == 0, result.stderr
    assert made.read_text() == (ROOT / "docs" / "performance.md").read_text()


def test_the_table_of_the_readme_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from readme_table import in_readme

    data = json.loads((ROOT / "docs" / "performance.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert in_readme(readme, data) == readme, "python tools/write_performance.py --page"
    other = in_readme(readme, {f"speed:{MODEL}": comparison("tg64", [100.0], [50.0], 160.0)})
    row = next(line for line in other.splitlines() if line.startswith("| Qwen2.5-Coder-0.5B"))
    assert " | 100 | 62% | 2.00× | not measured | not measured |" in row
    assert in_readme(other, data) == readme
    with pytest.raises(ValueError, match="needs one"):
        in_readme(readme.replace("<!-- end of speed -->", ""), data)


def test_an_aim_is_judged_by_the_median_of_the_pairs(pages: ModuleType) -> None:
    ours, theirs = [1600.0, 900.0, 1500.0], [320.0, 200.0, 300.0]
    data = {f"speed:{MODEL}": comparison("pp512", ours, theirs, 2900.0)}
    found = {(a.what, a.model): a for a in pages.aims(data)}
    ratio = found[("prompt 512, × llama.cpp", "Qwen2.5-Coder-0.5B")]
    assert (ratio.shown, ratio.missed) == ("5.00×", False)
    assert ratio.note.startswith("4.50 … 5.00; the bound allows 9.67")
    share = found[("prompt 512, % of the bound", "Qwen2.5-Coder-0.5B")]
    assert (share.shown, share.missed) == ("52%", False)
    other = found[("prompt 512, × llama.cpp", "SmolLM2-135M")]
    assert (other.shown, other.missed) == ("not measured", None)


def test_a_disturbed_repetition_does_not_count(pages: ModuleType) -> None:
    report = comparison("pp512", [2000.0, 500.0], [400.0, 390.0], 2900.0)
    ours, theirs = report["tests"][0]["engines"]
    ours["others_cpu_share"], theirs["others_cpu_share"] = [0.0, 0.5], [0.01, 0.0]
    [ratio] = [a for a in pages.aims({f"speed:{MODEL}": report}) if a.shown == "5.00×"]
    assert ratio.note.startswith("5.00 … 5.00")
    ours["others_cpu_share"] = [0.5, 0.5]
    assert any(a.note.startswith("1.28 … 5.00") for a in pages.aims({f"speed:{MODEL}": report}))


def test_the_page_names_a_missed_aim_and_an_engine_that_could_not_run(pages: ModuleType) -> None:
    data = {f"speed:{MODEL}": comparison("tg64", [100.0], [50.0], 160.0)}
    text = pages.page(data)
    assert "| generation batch 1, × llama.cpp | Qwen2.5-Coder-0.5B | ≥ 2.4× | 2.00× |" in text
    assert "**missed**" in text
    assert "OpenVINO GenAI not measured: It cannot read this." in text
    assert "0 of 26 aims are reached, 2 missed, 24 not measured." in text


def test_check_fails_on_a_missed_aim_only(tmp_path: Path) -> None:
    data, made = tmp_path / "data.json", tmp_path / "page.md"
    for rate, code in ((300.0, 0), (100.0, 1)):
        report = comparison("tg64", [rate], [50.0], rate / 0.9)
        data.write_text(json.dumps({f"speed:{MODEL}": report}))
        result = run_tool("--check", "--data", str(data), "--output", str(made))
        assert result.returncode == code, result.stderr
    assert "generation batch 1, × llama.cpp, Qwen2.5-Coder-0.5B: 2.00×, aim ≥ 2.4×" in result.stderr


def test_repetitions_are_appended_in_their_pairs(tool: ModuleType) -> None:
    old = comparison("32×(128+64)", [300.0], [100.0], 700.0)
    new = comparison("32×(128+64)", [400.0], [160.0], 700.0)
    both = tool.appended(old, new)
    rates = [figures["rates"] for figures in both["tests"][0]["engines"]]
    assert rates == [[300.0, 400.0], [100.0, 160.0]]
    assert both["conditions"]["repetitions"] == 2


def test_an_unknown_part_is_refused() -> None:
    result = run_tool("speed:gpt-9")
    assert result.returncode == 2
    assert "unknown part speed:gpt-9" in result.stderr
