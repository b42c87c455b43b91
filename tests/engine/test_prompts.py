"""The forms in which prompts may be written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.engine.params import SamplingParams
from headrace.engine.prompts import TokenPrompt, as_prompt_list, params_list, read_prompt
from headrace.errors import PromptError, UsageError


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_one_prompt_or_many() -> None:
    assert as_prompt_list("a") == ["a"]
    assert as_prompt_list(["a", "b"]) == ["a", "b"]
    assert as_prompt_list({"prompt": "a"}) == [{"prompt": "a"}]
    assert as_prompt_list([1, 2]) == [[1, 2]]
    assert as_prompt_list([[1], [2]]) == [[1], [2]]
    assert as_prompt_list([]) == []
    assert as_prompt_list([""]) == [""]
    assert [list(p) for p in as_prompt_list(np.array([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]
    for bad in (b"bytes", 5, None, np.array(5)):
        with pytest.raises(PromptError):
            as_prompt_list(bad)


def test_reading() -> None:
    assert read_prompt("ab", encode) == TokenPrompt([97, 98], "ab")
    assert read_prompt({"prompt": "a"}, encode) == TokenPrompt([97], "a")
    assert read_prompt({"prompt_token_ids": (1, 2)}, encode) == TokenPrompt([1, 2], None)
    both: dict[str, Any] = {"prompt": "x", "prompt_token_ids": np.array([1, 2])}
    assert read_prompt(both, encode) == TokenPrompt([1, 2], "x")
    ids = read_prompt([np.int64(3)], encode).token_ids  # type: ignore[list-item]
    assert ids == [3]
    assert type(ids[0]) is int


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"prompt_ids": [1]}, "Unknown prompt field 'prompt_ids'"),
        ({}, "needs prompt or prompt_token_ids"),
        ({"prompt": 5}, "must be text, not int"),
        ({"prompt_token_ids": "abc"}, "list of ids, not str"),
        ({"prompt_token_ids": [1, "2"]}, "holds '2'"),
        ({"prompt_token_ids": [1.0]}, r"holds 1\.0"),
        ({"prompt_token_ids": [True]}, "holds True"),
        ({"prompt_token_ids": 7}, "list of ids, not int"),
    ],
)
def test_bad_prompts_are_named(bad: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        read_prompt(bad, encode)


def test_parameters_for_all_or_for_each() -> None:
    a, b = SamplingParams(seed=1), SamplingParams(seed=2)
    assert params_list(None, 2) == [None, None]
    assert params_list(a, 2) == [a, a]
    assert params_list([a, b], 2) == [a, b]
    with pytest.raises(UsageError, match="1 SamplingParams were given for 2 prompts"):
        params_list([a], 2)
    for bad in ({"seed": 1}, "x", 5, [a, {"seed": 1}]):
        with pytest.raises(UsageError, match="are SamplingParams"):
            params_list(bad, 2)  # type: ignore[arg-type]
