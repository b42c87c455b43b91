"""A client's own words in response headers: they end up there as plain, bounded text."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.server.submit import MAX_HEADER_ITEMS, header_list
from live_server import LiveServer

BASE: dict[str, Any] = {"input": "Hi", "max_output_tokens": 40, "ignore_eos": True}
WORDS: list[dict[str, Any]] = [
    {"include": ["中"]},
    {"include": ["a\r\nset-cookie: evil=1"]},
    {"include": [f"word {number}" * 20 for number in range(5000)]},
    {"reasoning": {"中\r\n": 1}},
]


def test_a_list_is_plain_and_bounded() -> None:
    assert header_list(["user", "store", "user"], ", ") == "user, store"
    assert header_list(["a\r\nb: c", "é"], ", ") == "a??b: c, ?"
    long = header_list([f"{number:05}" * 100 for number in range(10_000)], ", ")
    assert long.endswith(", ...")
    assert len(long) < 210 * (MAX_HEADER_ITEMS + 1)


@pytest.mark.models
@pytest.mark.parametrize("words", WORDS, ids=["script", "line break", "many", "key"])
@pytest.mark.parametrize("stream", [False, True])
def test_words_are_named_and_nothing_stays(
    smollm2: LiveServer, words: dict[str, Any], stream: bool
) -> None:
    answer = smollm2.http.post("/v1/responses", json={**BASE, **words, "stream": stream})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    named = answer.headers["x-headrace-ignored"]
    assert named.startswith(("include ", "reasoning."))
    assert len(named) < 8000
    assert smollm2.idle()
