"""`headrace chat` and the chat prompt of a real model."""

from __future__ import annotations

import re

import pytest
from test_bad_input import process

from headrace.engine.model import open_model
from headrace.formats.chat_template import encode_chat

pytestmark = pytest.mark.models


def test_the_second_turn_reuses_the_first() -> None:
    result = process(
        "chat", "smollm2-135m", "-n", "12", "--temp", "0", "--stats",
        text="What is a mill?\n\nAnd a river?\n/quit\n",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    statistics = [line for line in result.stderr.splitlines() if line.startswith("[prompt")]
    assert len(statistics) == 2
    assert "cached" not in statistics[0]
    cached = re.search(r"(\d+) cached", statistics[1])
    assert cached is not None
    assert int(cached[1]) > 20
    assert len(result.stdout.strip().splitlines()) >= 2


def test_row_55_gemma_s_chat_has_one_bos() -> None:
    model = open_model("gemma3-270m")
    turns = [{"role": "user", "content": "Why is the sky blue?"}]
    ids = encode_chat(model.tokenizer, model.chat_template(), turns)
    # As llama.cpp tokenises the same turns with special tokens recognised.
    want = [2, 105, 2364, 107, 11355, 563, 506, 7217, 3730, 236881, 106, 107, 105, 4368, 107]
    assert ids == want
