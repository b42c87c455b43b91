"""Every fault that can be planted is caught by a rung that passes without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import tiny_models
from headrace.errors import UsageError
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.verify.faults import FAULTS, NO_FAULT, find_fault
from headrace.verify.ladder import Report, run_ladder
from headrace.verify.subject import Subject
from small_program import small_program

#: fault → the rungs that its symptom points at; each of them must fail.
CAUGHT_BY: Mapping[str, tuple[str, ...]] = {
    "cache-position": ("uncached = cached", "alone = forked"),
    "rope-offset": ("uncached = cached",),
    "mask-off-by-one": ("uncached = cached", "native = reference", "op by op"),
    "row-swap": ("batch 1 = batch n", "continuous = static"),
    "freed-block": ("batch 1 = batch n", "alone = with neighbours"),
    "stale-block-table": ("alone = with neighbours", "alone = forked"),
    "kv-head-map": ("native = reference", "op by op"),
    "dropped-chunk": ("whole = chunked",),
    "window-edge": ("whole = chunked", "native = reference", "op by op"),
    "skipped-norm": ("fused = unfused", "native = reference"),
    "noise-key": ("alone = with neighbours",),
    "long-match": ("cold = prefix hit",),
    "saved-neighbour": ("cold = restored",),
    "kept-draft": ("plain = n-gram drafts",),
}


@cache
def climb(fault: str, rungs: tuple[str, ...]) -> Report:
    """Some rungs of the ladder with a fault planted ("" = none)."""
    program = small_program()
    subject = Subject(program, program.vocab_size, num_threads=1, fault=FAULTS.get(fault, NO_FAULT))
    return run_ladder(subject, reference=None, only=lambda name: name in rungs)


def test_each_fault_has_its_rungs() -> None:
    assert set(FAULTS) == set(CAUGHT_BY)
    assert len(FAULTS) == 14
    assert all(fault.symptom for fault in FAULTS.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.torch if "op by op" in CAUGHT_BY[name] else ())
        for name in FAULTS
    ],
)
def test_the_fault_is_caught_and_without_it_the_rungs_pass(name: str) -> None:
    rungs = CAUGHT_BY[name]
    sound, faulty = climb("", rungs), climb(name, rungs)
    assert [r.name for r in sound.rungs] == [r.name for r in faulty.rungs] == list(rungs)
    assert sound.passed
    assert not faulty.passed
    for rung in faulty.rungs:
        assert not rung.passed
        assert rung.max_abs_error > rung.bound
    # A path that breaks down (no event) is caught too, but one rung at least ran and compared.
    assert any(rung.events > 0 for rung in faulty.rungs)
    assert faulty.conditions["fault"] == name
    json.dumps(faulty.to_dict(), allow_nan=False)


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"cache-positon.*cache-position, rope-offset"):
        find_fault("cache-positon", small_program())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("model", "fault", "reason"),
    [
        ("llama-tied", "kv-head-map", "single KV head"),
        ("llama", "window-edge", "window"),
        ("gpt2", "rope-offset", "rotary"),
    ],
)
def test_a_fault_the_model_cannot_have_is_refused(
    model: str, fault: str, reason: str, tmp_path: Path
) -> None:
    program = load(open_checkpoint(tiny_models.build(model, tmp_path)))
    with pytest.raises(UsageError, match=f"{fault} cannot exist in this model: .*{reason}"):
        find_fault(fault, program)
