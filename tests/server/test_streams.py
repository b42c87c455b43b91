"""What comes in pieces is what comes whole: read from the wire, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest

from live_server import LiveServer

pytestmark = pytest.mark.models

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
#: A family (four emoji joined by ZWJ), a flag, Cyrillic, Devanagari, Han, Arabic, an accent that
#: combines, and characters that JSON and event streams must escape or leave alone.
SCRIPTS = [
    "👨‍👩‍👧‍👦 🇳🇴 ok",
    "Мельница у реки",
    "पवन चक्की",
    "水車は川のそばに。",
    "الطاحونة e\u0301",
    'a"b\\c\nd\te\u2028f\u0085g data: [DONE]',
]


def forced(text: str) -> dict[str, Any]:
    """Fields with which the answer can only be this text."""
    return {"structured_outputs": {"choice": [text]}, "max_tokens": 120, "temperature": 0}


def texts_of(events: list[Any]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            joined[choice["index"]] = joined.get(choice["index"], "") + (piece or "")
    return joined


def reasons_of(events: list[Any]) -> list[tuple[int, str]]:
    return [
        (choice["index"], choice["finish_reason"])
        for event in events
        for choice in event["choices"]
        if choice["finish_reason"] is not None
    ]


def asked(path: str, **fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, **fields} if path == CHAT else {"prompt": "Hello", **fields}


def whole_text(choice: Any) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


# ---- characters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("text", SCRIPTS)
def test_row_43_characters_of_several_tokens(smollm2: LiveServer, path: str, text: str) -> None:
    body = asked(path, **forced(text), logprobs=True if path == CHAT else 0)
    whole = smollm2.json(path, body)
    events = smollm2.events(path, body)
    [choice] = whole["choices"]
    assert whole_text(choice) == text
    assert texts_of(events) == {0: text}
    assert whole["usage"]["completion_tokens"] > len(text.split())
    assert "\ufffd" not in str([event["choices"][0].get("delta") for event in events])


def test_row_43_an_incomplete_character_at_the_end(smollm2: LiveServer) -> None:
    """One replacement character for it, streamed and whole; its bytes stand in the logprobs."""
    [first, *_] = smollm2.json("/tokenize", {"prompt": "👨", "add_special_tokens": False})["tokens"]
    fields = {"allowed_token_ids": [first], "max_tokens": 1, "temperature": 0}
    whole = smollm2.json(CHAT, asked(CHAT, **fields, logprobs=True))
    assert whole["choices"][0]["message"]["content"] == "\ufffd"
    piece = bytes(whole["choices"][0]["logprobs"]["content"][0]["bytes"])
    assert "👨".encode().startswith(piece)
    assert texts_of(smollm2.events(CHAT, asked(CHAT, **fields))) == {0: "\ufffd"}


@pytest.mark.parametrize("text", [" leading and  double ", "\n\nlines\n", "  "])
def test_row_44_spaces_survive_at_every_border(smollm2: LiveServer, text: str) -> None:
    for path in (CHAT, COMPLETIONS):
        body = asked(path, **forced(text))
        assert whole_text(smollm2.json(path, body)["choices"][0]) == text
        assert texts_of(smollm2.events(path, body)) == {0: text}


# ---- stop strings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stop", "want"),
    [
        ("ABCDEFGHIJ K", "DEFGHIJ", "ABC"),  # row 45: over token borders
        ("alpha beta gamma delta", "beta gamma", "alpha "),
        ("one, two, three, four, five, six", "five", "one, two, three, four, "),  # row 46
        ("Мельница у реки", "у р", "Мельница "),
        ("水車は川のそばに", "川", "水車は"),
        ("nothing matches", "absent", "nothing matches"),
        ("almost a stop", "stops", "almost a stop"),  # held back, then told
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_rows_45_and_46_stop_strings(
    smollm2: LiveServer, path: str, text: str, stop: str, want: str
) -> None:
    body = asked(path, **forced(text), stop=[stop, "\x00"])
    whole = smollm2.json(path, body)["choices"][0]
    events = smollm2.events(path, body)
    assert whole_text(whole) == want
    assert texts_of(events) == {0: want}
    assert reasons_of(events) == [(0, "stop")]
    assert whole["finish_reason"] == "stop"
    assert (whole["stop_reason"] == stop) == (stop in text)
    kept = smollm2.json(path, {**body, "include_stop_str_in_output": True})["choices"][0]
    assert whole_text(kept) == (want + stop if stop in text else want)


# ---- the order of events ------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("usage", [None, "include_usage", "continuous_usage_stats"])
def test_row_47_every_sample_ends_once(smollm2: LiveServer, path: str, usage: str | None) -> None:
    body = asked(path, n=3, temperature=1, seed=7, max_tokens=20, stop=["."])
    body["cache_prompt"] = False
    whole = smollm2.json(path, body)
    options = {} if usage is None else {"stream_options": {"include_usage": True, usage: True}}
    events = smollm2.events(path, {**body, **options})
    assert texts_of(events) == {c["index"]: whole_text(c) for c in whole["choices"]}
    assert sorted(reasons_of(events)) == [
        (c["index"], c["finish_reason"]) for c in whole["choices"]
    ]
    empty = [event for event in events if not event["choices"]]
    assert len(empty) == (0 if usage is None else 1)
    if usage is None:
        assert all("usage" not in event for event in events)
    else:
        assert events[-1] is empty[0]
        assert empty[0]["usage"] == whole["usage"]
        counts = [event["usage"] for event in events[:-1]]
        if usage == "include_usage":
            assert counts == [None] * len(counts)
        else:
            told = [count["completion_tokens"] for count in counts]
            assert told == sorted(told)
            assert told[-1] == whole["usage"]["completion_tokens"]
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_row_59_the_last_content_comes_before_the_end(smollm2: LiveServer, path: str) -> None:
    events = smollm2.events(path, asked(path, temperature=0, max_tokens=5, ignore_eos=True))
    *content, last = events
    assert all(event["choices"][0]["finish_reason"] is None for event in content)
    assert last["choices"][0]["finish_reason"] == "length"
    assert not texts_of([last])[0]
    assert sum(bool(texts_of([event])[0]) for event in content) == 5


def test_logprobs_streamed_are_logprobs_whole(smollm2: LiveServer) -> None:
    fields = {"temperature": 1, "seed": 11, "max_tokens": 16, "n": 2}
    chat = asked(CHAT, **fields, logprobs=True, top_logprobs=3)
    joined: dict[int, list[Any]] = {0: [], 1: []}
    for event in smollm2.events(CHAT, chat):
        for choice in event["choices"]:
            joined[choice["index"]] += (choice["logprobs"] or {"content": []})["content"]
    whole = smollm2.json(CHAT, chat)["choices"]
    assert joined == {choice["index"]: choice["logprobs"]["content"] for choice in whole}
    legacy = asked(COMPLETIONS, **fields, logprobs=3, echo=True)
    lists: dict[int, dict[str, list[Any]]] = {0: {}, 1: {}}
    for event in smollm2.events(COMPLETIONS, legacy):
        for choice in event["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                lists[choice["index"]].setdefault(name, []).extend(values)
    whole = smollm2.json(COMPLETIONS, legacy)["choices"]
    assert lists == {choice["index"]: choice["logprobs"] for choice in whole}


# ---- numbers ------------------------------------------------------------------------------------


def test_row_53_what_is_impossible_is_still_json(smollm2: LiveServer) -> None:
    """Tokens that a grammar or a list forbids are no candidates and left out; one whose
    probability rounds to nothing gets the floor -9999, which JSON can carry."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
              "required": ["n"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for mode in ("raw", "processed"):
        body = asked(CHAT, response_format=form, max_tokens=20, seed=1, logprobs=True,
                     top_logprobs=20, logprobs_mode=mode)  # fmt: skip
        content = smollm2.json(CHAT, body)["choices"][0]["logprobs"]["content"]
        assert smollm2.events(CHAT, body)
        tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in content]
        assert all(-9999.0 <= value <= 0.0 for top in tops for value in top)
        assert all(len(top) == 20 for top in tops) == (mode == "raw")
    body = asked(COMPLETIONS, temperature=1e-5, logprobs=5, max_tokens=3,
                 logprobs_mode="processed")  # fmt: skip
    tops = smollm2.json(COMPLETIONS, body)["choices"][0]["logprobs"]["top_logprobs"]
    assert [sorted(set(top.values())) for top in tops] == [[-9999.0, 0.0]] * 3
    assert smollm2.events(COMPLETIONS, body)


# ---- BOS ----------------------------------------------------------------------------------------


def test_row_55_a_chat_has_one_bos(gemma3: LiveServer) -> None:
    bos = 2
    ids = gemma3.json("/tokenize", {"messages": HELLO})["tokens"]
    assert ids[0] == bos
    assert ids.count(bos) == 1
    answer = gemma3.json(CHAT, {"messages": HELLO, "max_tokens": 1, "return_token_ids": True})
    assert answer["prompt_token_ids"] == ids
    assert answer["usage"]["prompt_tokens"] == len(ids)
    # A text that already begins with the BOS literal: its ids are what was written, and the
    # answer's header warns.
    twice = gemma3.post(
        COMPLETIONS, {"prompt": "<bos>Hello", "max_tokens": 1, "return_token_ids": True}
    )
    assert twice.json()["choices"][0]["prompt_token_ids"][:2] == [bos, bos]
    assert "BOS" in twice.headers["x-headrace-warning"]
    once = gemma3.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 1, "return_token_ids": True})
    assert once.json()["choices"][0]["prompt_token_ids"].count(bos) == 1
    assert "x-headrace-warning" not in once.headers
