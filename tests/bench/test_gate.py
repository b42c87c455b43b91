"""The gate lets nothing through that computes wrong; nothing is measured behind a closed one."""

from __future__ import annotations

import pytest

from headrace.bench.gate import CheckFailed, check
from headrace.verify.faults import FAULTS
from headrace.verify.subject import Subject
from small_program import small_program

SEEN = (
    "cache-position", "rope-offset", "mask-off-by-one", "row-swap", "freed-block", "dropped-chunk",
    "window-edge",
)  # fmt: skip


def subject(fault: str | None = None) -> Subject:
    program = small_program()
    subject = Subject(program, program.vocab_size, num_threads=2, length=300)
    if fault is not None:
        subject.fault = FAULTS[fault]
    return subject


def test_a_sound_configuration_passes_every_rung() -> None:
    started: list[str] = []
    report = check(subject(), 5, on_start=started.append)
    assert report.passed
    assert [rung.name for rung in report.rungs] == started
    assert started[-1] == "alone = batch of 5"
    for rung in report.rungs:
        assert rung.exact
        assert rung.events > 0
        assert rung.max_abs_error == 0
    assert report.conditions["threads"] == 2


@pytest.mark.parametrize("fault", SEEN)
def test_a_planted_fault_closes_the_gate(fault: str) -> None:
    with pytest.raises(CheckFailed, match=r"^No speed is printed, .* failed '") as caught:
        check(subject(fault), 3)
    assert "\n" not in str(caught.value)


def test_the_batch_rung_sees_exchanged_rows_by_itself() -> None:
    from headrace.bench.gate import together

    assert together(subject(), "b", 4).passed
    broken = together(subject("row-swap"), "b", 4)
    assert not broken.passed
    assert broken.max_abs_error > 0
    assert broken.events > 0
