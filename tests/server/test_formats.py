"""Structured output over HTTP: every way of asking, checked by parsers that know nothing of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from live_server import LiveServer

pytestmark = pytest.mark.models

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Describe a pet as JSON."}]
GBNF = 'root ::= ("yes" | "no") "!"'


def text_of(server: LiveServer, path: str, **fields: Any) -> tuple[str, str]:
    """Text and finish reason of one seeded answer."""
    body: dict[str, Any] = {"max_tokens": 200, "seed": 7, "temperature": 1.0, **fields}
    if path == "/v1/chat/completions":
        choice = server.json(path, {"messages": ASK, **body})["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    choice = server.json(path, {"prompt": "A pet: ", **body})["choices"][0]
    return choice["text"], choice["finish_reason"]


AS_SCHEMA: list[dict[str, Any]] = [
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "pet", "schema": PERSON, "strict": True},
        }
    },
    {"response_format": {"type": "json_object", "schema": PERSON}},
    {"structured_outputs": {"json": PERSON}},
    {"structured_outputs": {"json": json.dumps(PERSON)}},
    {"guided_json": PERSON},
    {"json_schema": PERSON},
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("fields", AS_SCHEMA, ids=lambda fields: next(iter(fields)))
def test_a_schema_is_followed(smollm2: LiveServer, path: str, fields: dict[str, Any]) -> None:
    text, reason = text_of(smollm2, path, **fields)
    jsonschema.validate(json.loads(text), PERSON)
    assert reason == "stop"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_other_forms(smollm2: LiveServer, path: str) -> None:
    answers = {
        name: text_of(smollm2, path, **fields)
        for name, fields in {
            "object": {"response_format": {"type": "json_object"}, "max_tokens": 300},
            "regex": {"structured_outputs": {"regex": "[A-Z][a-z]{2,5} [0-9]{3}"}},
            "guided_regex": {"guided_regex": "[0-9]{4}"},
            "choice": {"structured_outputs": {"choice": ["red", "green"]}},
            "guided_choice": {"guided_choice": ["left", "right"]},
            "lark": {"structured_outputs": {"grammar": 'start: "a" "b"'}},
            "gbnf": {"grammar": GBNF},
            "guided_grammar": {"guided_grammar": GBNF},
        }.items()
    }
    text, reason = answers.pop("object")
    assert reason == "length" or isinstance(json.loads(text), dict)
    assert {reason for _, reason in answers.values()} == {"stop"}
    assert re.fullmatch("[A-Z][a-z]{2,5} [0-9]{3}", answers["regex"][0])
    assert re.fullmatch("[0-9]{4}", answers["guided_regex"][0])
    assert answers["choice"][0] in ("red", "green")
    assert answers["guided_choice"][0] in ("left", "right")
    assert answers["lark"][0] == "ab"
    assert answers["gbnf"][0] in ("yes!", "no!")
    assert answers["guided_grammar"][0] in ("yes!", "no!")


def test_fields_that_ask_for_nothing(smollm2: LiveServer) -> None:
    plain = text_of(smollm2, "/v1/completions", max_tokens=8)
    for fields in ({"response_format": {"type": "text"}}, {"grammar": ""}, {"guided_json": None}):
        assert text_of(smollm2, "/v1/completions", max_tokens=8, **fields) == plain


def test_streams_and_samples_follow_it_too(smollm2: LiveServer) -> None:
    body = {
        "messages": ASK,
        "n": 3,
        "temperature": 1.5,
        "seed": 3,
        "max_tokens": 200,
        "response_format": AS_SCHEMA[0]["response_format"],
    }
    whole = smollm2.json("/v1/chat/completions", body)["choices"]
    texts = dict.fromkeys(range(3), "")
    for line in smollm2.post("/v1/chat/completions", {**body, "stream": True}).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {choice["index"]: choice["message"]["content"] for choice in whole}
    assert len(set(texts.values())) > 1
    for text in texts.values():
        jsonschema.validate(json.loads(text), PERSON)


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_beside_a_mask_are_json(smollm2: LiveServer, mode: str) -> None:
    """Fault 53: what the schema forbids has probability 0, whose logarithm is no JSON number."""
    body = {
        "messages": ASK,
        "max_tokens": 100,
        "logprobs": True,
        "top_logprobs": 20,
        "logprobs_mode": mode,
        "response_format": AS_SCHEMA[0]["response_format"],
    }
    answer = smollm2.post("/v1/chat/completions", body)
    assert answer.status_code == 200
    content = strict_json(answer.text)["choices"][0]["logprobs"]["content"]
    values = [top["logprob"] for entry in content for top in entry["top_logprobs"]]
    assert all(-9999.0 <= value <= 0.0 for value in values)
    stream = smollm2.post("/v1/chat/completions", {**body, "stream": True}).text
    for line in stream.splitlines():
        if line.startswith("data: {"):
            strict_json(line[6:])


def test_json_does_not_loop_on_blanks(smollm2: LiveServer) -> None:
    """Fault 54: a model that is drawn to blanks must not write them for ever."""
    blanks = {" ", "\n", "\t", "  ", "\n\n"}
    bias = {}
    for text in blanks:
        ids = smollm2.json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        if len(ids) == 1:
            bias[str(ids[0])] = 20
    assert len(bias) >= 3
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999_999}},
        "required": ["n"],
        "additionalProperties": False,
    }
    body = {"messages": ASK, "max_tokens": 60, "logit_bias": bias}
    for format_ in (
        {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        {"type": "json_object"},
    ):
        choice = smollm2.json("/v1/chat/completions", {**body, "response_format": format_})[
            "choices"
        ][0]
        text = choice["message"]["content"]
        outside_strings = re.sub(r'"(?:[^"\\]|\\.)*"?', "", text)
        assert not re.search(r"\s{3,}", outside_strings), text
        if choice["finish_reason"] == "stop":
            json.loads(text)
        else:
            assert choice["finish_reason"] == "length"
            assert format_["type"] == "json_object"


REFUSED: list[tuple[Mapping[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format", "response_format.type"),
    ({"response_format": {}}, "response_format", "response_format.type"),
    ({"response_format": "json"}, "response_format", "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format",
        "response_format.json_schema.schema is missing",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wat"}}}},
        "response_format",
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        "guided_regex",
        "response_format and guided_regex",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex"),
    ({"structured_outputs": {"wat": 1}}, "structured_outputs", "wat"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "structured_outputs.json"),
    ({"guided_regex": "("}, "guided_regex", "guided_regex"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "guided_regex"),
    ({"guided_choice": []}, "guided_choice", "guided_choice"),
    ({"grammar": "root ::= ("}, "grammar", "grammar"),
    ({"json_schema": {"$ref": "http://example.org/schema"}}, "json_schema", "json_schema"),
    ({"json_schema": {"$ref": "#/$defs/missing"}}, "json_schema", "json_schema"),
    ({"json_schema": False}, "json_schema", "json_schema"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_refusals_name_the_field(
    smollm2: LiveServer, path: str, fields: Mapping[str, Any], param: str, words: str
) -> None:
    prompt = {"messages": ASK} if path == "/v1/chat/completions" else {"prompt": "A"}
    error = smollm2.refusal(path, {**prompt, **fields, "max_tokens": 4})
    assert error["param"] == param
    assert words in error["message"]


def test_what_the_request_makes_impossible_is_its_own_fault(smollm2: LiveServer) -> None:
    number = smollm2.json("/tokenize", {"prompt": "1", "add_special_tokens": False})["tokens"]
    for fields in (
        {"allowed_token_ids": number, "guided_choice": ["red"]},
        {"min_tokens": 20, "guided_choice": ["red"]},
    ):
        error = smollm2.refusal("/v1/completions", {"prompt": "A", "max_tokens": 30, **fields})
        assert error["type"] == "invalid_request_error"
