"""docs/lab: a page per experiment, its figures from a result, its faults those of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.lab.catalog import EXPERIMENTS, find
from live_server import ROOT

PAGES = ROOT / "docs" / "lab"


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_the_index_takes_a_newcomer_through_all_in_order() -> None:
    linked = re.findall(r"\(([a-z-]+)\.md\)", page("index"))
    assert [name for name in dict.fromkeys(linked) if name in EXPERIMENTS] == list(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_page(name: str) -> None:
    text = page(name)
    assert f"headrace lab run {name}" in text
    for heading in ("## What to expect", "## What to change", "## Plant a fault"):
        assert heading in text, heading
    faults = find(name).faults
    assert all(fault in text for fault in faults)
    marks = re.findall(r"<!-- lab:([\w-]+):([^>]+) -->\n(.*?)<!-- /lab -->", text, re.DOTALL)
    parts = [part for _, part, _ in marks]
    assert {"checks", "predictions", "conclusions", "conditions"} <= {*parts}
    assert parts.index("checks") < parts.index("predictions"), "correct first"
    for experiment, _, content in marks:
        assert experiment == name
        assert content.strip(), "tools/write_lab_docs.py fills it"
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert images
    for image in images:
        assert (PAGES / Path(image).name).is_file(), image
