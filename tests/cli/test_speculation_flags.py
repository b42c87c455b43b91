"""Speculation at the command line: what cannot be meant is refused in one sentence, and --stats
tells what was guessed."""

from __future__ import annotations

import re

import pytest
from test_bad_input import assert_clean, process

from command_line import headrace

pytestmark = pytest.mark.models

GENERATE = ("generate", "smollm2-135m", "-p", "The sea is a", "-n", "24", "--offline")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ("--speculative draft", 2, 'speculative = "draft" needs draft_model'),
        ("--draft-quantize q4_0", 2, "draft_quantize is for a draft_model"),
        ("--draft-model gemma3-270m", 2, "token 0 is '<pad>' (a control token) in the draft's"),
        ("--speculative ngram --num-draft-tokens many", 2, "neither a number nor"),
        ("--speculative ngram --num-draft-tokens 65", 2, "1 … 64"),
        ("--num-draft-tokens 3", 2, "nobody guesses"),
        ("--acceptance rejection", 2, "nobody guesses"),
        ("-md smollm2-135m --draft-quantize q9", 2, "draft_quantize = 'q9' is unknown"),
    ],
)
def test_nonsense_is_refused(flags: str, code: int, words: str) -> None:
    assert_clean(headrace(*GENERATE, *flags.split()), code, words)


def test_a_model_drafts_for_itself_in_fewer_bits() -> None:
    plain = process(*GENERATE)
    flags = [
        "-md",
        "smollm2-135m",
        "--draft-quantize",
        "q4_0",
        "--num-draft-tokens",
        "3",
        "--stats",
    ]
    drafted = process(*GENERATE, *flags)
    assert drafted.returncode == 0, drafted.stderr
    assert drafted.stdout == plain.stdout
    assert "headrace: draft model: quantised at load: Q4_0" in drafted.stderr
    found = re.search(r"drafted (\d+), tested (\d+), accepted (\d+), α (\d\.\d\d)", drafted.stderr)
    assert found is not None, drafted.stderr
    guessed, tested, accepted = (int(found[i]) for i in (1, 2, 3))
    assert guessed >= tested >= accepted > 0
    assert float(found[4]) == pytest.approx(accepted / tested, abs=0.005)
