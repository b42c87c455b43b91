"""From bytes to an object: what is refused, and that no answer takes long."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.params import SamplingParams
from headrace.errors import UsageError
from headrace.server.body import MAX_VALUES, Inbox, nesting, parse_object
from headrace.server.errors import ApiError
from headrace.server.fields import ignored_fields
from headrace.server.protocol.common import MAX_BIASES, parse
from headrace.server.protocol.completion import CompletionRequest

LIMIT = 64

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=30,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=6), json_values, max_size=5), st.booleans())
def test_what_is_json_comes_through_unchanged(value: dict[str, Any], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode(), LIMIT) == value


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(v) for v in value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(json_values, st.text('"\\[]{}a', max_size=12))
def test_nesting_counts_brackets_outside_of_texts(value: Any, text: str) -> None:
    data = json.dumps({text: [text, value]}).encode()
    expected = depth_of({"": [text, value]})
    assert nesting(data, 0) == 1  # it stops as soon as it knows
    assert nesting(data, 10_000) in (0, expected)  # 0: too few brackets to be deeper
    for limit in range(expected):
        assert nesting(data, limit) > limit
    assert nesting(data, expected) <= expected


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"[]", "an array"),
        (b"null", "null"),
        (b"1", "a number"),
        (b'{"a":', "not valid JSON"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e400}', "too large"),
        (b'{"a":[-1e999]}', "too large"),
        (b'{"a":1' + b"0" * 400 + b"}", "400 digits"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper"),
        (b"[" * 1_000_000, "values"),
        (b"[" * 100_000, "deeper"),
        (b'{"a":[' + b"0," * MAX_VALUES + b"0]}", "values"),
    ],
)
def test_refusals_say_why(data: bytes, word: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(data, LIMIT)
    assert caught.value.status == 400
    assert word in caught.value.message
    assert len(caught.value.message) < 300


def test_what_only_looks_dangerous_is_taken() -> None:
    texts = [
        "[" * 500,
        '\\"[{' * 100,
        "9" * 5000,
        "\\ud83d\\ude00",
        "\U0001f600",
        "NaN",
        "\\\\" * 99,
    ]
    for text in texts:
        assert parse_object(json.dumps({"a": text}).encode(), LIMIT) == {"a": text}
    assert parse_object(b'{"a":"\\ud83d\\ude00"}', LIMIT) == {"a": "\U0001f600"}
    assert parse_object(b'{"a":1' + b"0" * 399 + b"}", LIMIT)["a"] == 10**399
    assert parse_object(b'{"a":' * 64 + b"1" + b"}" * 64, LIMIT)


def test_all_bodies_together_are_bounded() -> None:
    inbox = Inbox(100)
    inbox.take(60)
    with pytest.raises(ApiError) as caught:
        inbox.take(41)
    assert caught.value.status == 429
    assert caught.value.headers["Retry-After"]
    inbox.take(40)


HOSTILE: list[dict[str, Any]] = [
    {"prompt": [1.5] * MAX_VALUES},
    {"prompt": [["a"]] * MAX_VALUES},
    {"prompt": "a", "stop": [1] * MAX_VALUES},
    {"prompt": "a", "logit_bias": {str(n): "x" for n in range(MAX_BIASES + 1)}},
    {f"x{n}": 1 for n in range(100_000)},
    {"prompt": "a", "x" * 4_000_000: 1},
    {"prompt": "a", "sampler_stages": ["x" * 4_000_000]},
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_a_refusal_is_short_whatever_is_refused(body: dict[str, Any]) -> None:
    """The first of them once took five seconds and a gigabyte: every wrong item was reported."""
    with pytest.raises((ApiError, UsageError)) as caught:
        read(body)
    message = str(caught.value)
    assert len(message) < 600
    found = re.search(r"\((\d+) more like this\)", message)
    assert found is None or int(found[1]) < 10


def read(body: dict[str, Any]) -> None:
    parsed = parse(CompletionRequest, body)
    ignored_fields(parsed)
    SamplingParams(stages=parsed.sampler_stages or ())


def test_ids_are_checked_once_for_many_prompts() -> None:
    params = SamplingParams(allowed_token_ids=range(1000))
    params.validate_for(1000)
    params.validate_for(1000)
    with pytest.raises(UsageError, match="999"):
        params.validate_for(999)
    with pytest.raises(UsageError, match="999"):
        params.validate_for(999)
    assert params.num_listed_ids == 1000
    assert params == SamplingParams(allowed_token_ids=range(1000))
