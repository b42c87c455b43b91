"""Signatures of faults: zero without one, and enough for the rule to name the family."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from headrace.lab.experiments.faults import EXPECTED
from headrace.lab.faults.oddities import HELD, held_share
from headrace.lab.faults.signatures import FAMILIES, family_of, largest_difference, signature
from headrace.lab.faults.situations import SITUATIONS, Seen, Text, see, text_for
from headrace.lab.parts.tiny import tiny_model
from headrace.ops.native import NativeModel
from headrace.verify.faults import FAULTS, NO_FAULT, Fault
from headrace.verify.subject import Subject
from small_program import WINDOW, small_program


def subject(fault: Fault = NO_FAULT) -> Subject:
    program = small_program()
    return Subject(program, program.vocab_size, num_threads=1, fault=fault, length=300)


@cache
def clean() -> tuple[dict[str, Seen], Text]:
    sound = subject()
    text = text_for(sound)
    return {name: see(sound, name, text) for name in SITUATIONS}, text


def test_a_sound_engine_has_an_empty_signature_and_one_text_in_every_situation() -> None:
    sound, text = clean()
    again = {name: see(subject(), name, text) for name in SITUATIONS}
    assert not [seen.error for seen in (*sound.values(), *again.values()) if seen.error]
    found = signature(sound, again, text, WINDOW)
    assert found.empty
    assert found.consistent
    assert family_of(found) == "nothing"
    alone = sound["alone"].logits
    for name in set(SITUATIONS) - {"guesses", "sampled"}:
        assert sound[name].logits
        for position, row in sound[name].logits.items():
            assert row.tobytes() == alone[position].tobytes(), (name, position)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_rule_names_the_family_of_every_fault(name: str) -> None:
    sound, text = clean()
    faulty = subject(FAULTS[name])
    found = signature(sound, {s: see(faulty, s, text) for s in SITUATIONS}, text, WINDOW)
    assert not found.empty
    assert family_of(found) == EXPECTED[name]


def test_every_fault_has_a_family_with_words() -> None:
    assert set(EXPECTED) == set(FAULTS)
    assert set(EXPECTED.values()) <= set(FAMILIES)


def test_differences_are_zero_for_equal_bits_only() -> None:
    row = np.array([1.0, 0.0, -2.0], np.float32)
    same, other = row.copy(), row.copy()
    other[2] = -2.5
    minus = row.copy()
    minus[1] = -0.0
    nan = row.copy()
    nan[0] = np.nan
    sound = Seen({4: row, 5: row, 6: row, 7: row})
    found = largest_difference(sound, Seen({4: same, 5: other, 6: minus, 7: nan}))
    assert found == {4: 0.0, 5: 0.5, 6: float("inf"), 7: float("inf")}
    assert largest_difference(sound, Seen({9: row})) == {4: float("inf")}


def test_texts_that_part_are_compared_up_to_there() -> None:
    row = np.zeros(3, np.float32)
    sound = Seen({9: row, 10: row, 11: row + 1}, tokens=(5, 6, 7))
    other = Seen({9: row, 10: row, 11: row}, tokens=(5, 2, 7))
    assert largest_difference(sound, other) == {9: 0.0, 10: 0.0}


def test_the_tiny_model_runs_and_blocks_hold_more_than_the_text() -> None:
    model = tiny_model()
    assert NativeModel(model, num_threads=1).vocab_size == 256
    assert held_share(1) == 1.0
    assert held_share(16) * HELD == 96
