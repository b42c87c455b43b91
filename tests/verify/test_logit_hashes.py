"""The committed hashes of real models' logits: no kernel change may alter a bit of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.model import open_model
from headrace.formats.aliases import ALIASES
from headrace.native import core
from headrace.ops.kv import KVFormat
from headrace.ops.numerics import NUMERICS_ID
from headrace.verify.golden import CHUNKS, POSITIONS, logit_hashes

FILE = Path(__file__).parents[1] / "golden" / "logit_hashes.json"
GOLDEN: dict[str, Any] = json.loads(FILE.read_text())


def check(name: str, kv_format: str, isa: str | None, num_threads: int) -> None:
    entry = GOLDEN["models"][name]
    ids = [int(i) for i in entry["token_ids"].split()]
    hashes, _ = logit_hashes(
        open_model(name).program,
        ids,
        KVFormat(kv_format),
        chunks=GOLDEN["chunks"],
        positions=GOLDEN["positions"],
        isa=isa,
        num_threads=num_threads,
    )
    expected = dict(zip(GOLDEN["positions"], entry["logits_sha256"][kv_format], strict=True))
    assert dict(zip(GOLDEN["positions"], hashes, strict=True)) == expected


def test_the_file_is_of_this_arithmetic_and_complete() -> None:
    assert GOLDEN["numerics_id"] == NUMERICS_ID
    assert (tuple(GOLDEN["chunks"]), tuple(GOLDEN["positions"])) == (CHUNKS, POSITIONS)
    assert set(GOLDEN["models"]) == set(ALIASES)
    for name, entry in GOLDEN["models"].items():
        assert entry["file_sha256"] == ALIASES[name].sha256
        assert len(entry["token_ids"].split()) == sum(CHUNKS)
        for hashes in entry["logits_sha256"].values():
            assert len(set(hashes)) == len(POSITIONS)


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
@pytest.mark.parametrize("kv_format", ["f32", "bf16"])
def test_small_models(name: str, kv_format: str) -> None:
    check(name, kv_format, None, 2)


@pytest.mark.models
def test_small_models_on_the_lowest_level() -> None:
    check("smollm2-135m", "bf16", core().available_isas()[0], 1)


@pytest.mark.large
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
@pytest.mark.parametrize("kv_format", ["f32", "bf16"])
@pytest.mark.parametrize("isa", core().available_isas())
def test_large_models(name: str, kv_format: str, isa: str) -> None:
    check(name, kv_format, isa, 2)


@pytest.mark.large
@pytest.mark.parametrize("name", list(ALIASES))
def test_the_files_are_the_ones_hashed(name: str) -> None:
    with open_model(name).path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == ALIASES[name].sha256
