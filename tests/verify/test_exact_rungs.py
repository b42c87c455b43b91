"""The exact rungs hold, bit for bit and with events, on small programs and on tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.native import core
from headrace.ops.kv import KVFormat
from headrace.verify.exact import EXACT_RUNGS
from headrace.verify.ladder import run_ladder
from headrace.verify.subject import Subject
from headrace.verify.workload import QUICK, SEGMENT, TILE
from small_program import WINDOW, small_program


def assert_holds(subject: Subject) -> None:
    report = run_ladder(subject, reference=False)
    assert [r.name for r in report.rungs] == list(EXACT_RUNGS)
    for rung in report.rungs:
        assert rung.exact
        assert rung.max_abs_error == 0.0, rung
        assert rung.events > 0, rung
        assert rung.passed
    assert report.passed


@pytest.mark.parametrize(
    ("kv_format", "num_threads"), [(KVFormat.F32, 1), (KVFormat.BF16, 2), (KVFormat.F16, 1)]
)
def test_a_small_program_with_a_window(kv_format: KVFormat, num_threads: int) -> None:
    program = small_program()
    assert_holds(Subject(program, program.vocab_size, kv_format=kv_format, num_threads=num_threads))


@pytest.mark.parametrize("isa", core().available_isas()[:-1])
def test_forced_instruction_set_levels(isa: str) -> None:
    program = small_program(seed=1)
    assert_holds(Subject(program, program.vocab_size, isa=isa, num_threads=1, block_size=32))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_tiny_models(name: str, tmp_path: Path) -> None:
    program = load(open_checkpoint(tiny_models.build(name, tmp_path)))
    assert_holds(Subject(program, tiny_models.VOCAB, num_threads=1, length=QUICK))


def test_the_text_crosses_every_border() -> None:
    program = small_program()
    work = Subject(program, program.vocab_size).workload
    assert len(work.text) > max(3 * TILE, SEGMENT + 16)
    for border in (16, TILE, SEGMENT, WINDOW):
        assert {border - 1, border, border + 1} <= set(work.edges)
    assert {TILE, SEGMENT, WINDOW} <= set(work.few)
    assert len(work.shorts[-1]) < SEGMENT < len(work.shorts[-1]) + 16  # decoding crosses it
