"""StructuredOutputs: exactly one field, each of the right form, errors that name the field."""

from __future__ import annotations

import pytest

from headrace.engine.params import SamplingParams
from headrace.errors import UsageError
from headrace.structured.spec import StructuredOutputs

WRONG = [
    ({}, "takes exactly one of json, json_object, regex, choice, grammar; none was given"),
    ({"json": None}, "none was given"),
    ({"json_object": False}, "none was given"),
    ({"json": {}, "regex": "a"}, "json and regex were given"),
    ({"json": False, "choice": ["a"]}, "json and choice were given"),
    ({"json": "{"}, "no JSON schema: Expecting property name"),
    ({"json": ""}, "no JSON schema"),
    ({"json": "[1]"}, "must be a JSON schema: an object, true or false"),
    ({"json": 3}, "must be a JSON schema"),
    ({"json": '{"minimum":NaN}'}, "NaN is no JSON"),
    ({"json": {"minimum": float("inf")}}, "no plain JSON"),
    ({"json": {"a": object()}}, "holds object"),
    ({"json": "[" * 100_000}, "no JSON schema"),
    ({"json": {"const": "\ud800"}}, "lone surrogate"),
    ({"json_object": 1}, "json_object must be true or false"),
    ({"regex": ""}, "regex must be text that is not empty"),
    ({"regex": 5}, "regex must be text"),
    ({"choice": "abc"}, "choice must be a list"),
    ({"choice": []}, "choice must be a list of at least one"),
    ({"choice": ["a", ""]}, "choice must hold texts"),
    ({"choice": ["a", 1]}, "choice must hold texts"),
    ({"choice": ["\ud800"]}, "lone surrogate"),
    ({"grammar": {"a": 1}}, "grammar must be text"),
    ({"schema": {}}, "Unknown field 'schema'"),
    ({1: {}}, "Unknown field '1'"),
    ("json", "must be a mapping"),
    (["json"], "must be a mapping"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_what_is_wrong_is_named(values: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StructuredOutputs.from_dict(values)
    with pytest.raises(UsageError, match=message):
        SamplingParams.from_dict({"structured_outputs": values})


@pytest.mark.parametrize(
    "given",
    [
        {"json": {"type": "object", "properties": {"ä": {"enum": ["\u2028"]}}}},
        {"json": '{"type": "object"}'},
        {"json": True},
        {"json": False},
        {"json_object": True},
        {"regex": "[0-9]+"},
        {"choice": ["b", "a", "b"]},
        {"grammar": 'start: "x"'},
    ],
)
def test_equal_specs_are_equal_and_survive_json(given: dict) -> None:
    spec = StructuredOutputs(**given)
    assert spec.kind == next(iter(given))
    assert {spec: 1}[StructuredOutputs(**given)] == 1
    params = SamplingParams(structured_outputs=spec, max_tokens=3)
    assert SamplingParams.from_dict(params.to_dict()) == params
    assert params.replace(max_tokens=4).structured_outputs == spec


def test_a_schema_is_the_same_as_text_and_as_values() -> None:
    text = '{ "type" : "array", "items": {"type": "null"} }'
    assert StructuredOutputs(json=text) == StructuredOutputs(
        json={"type": "array", "items": {"type": "null"}}
    )
    assert StructuredOutputs(choice=["b", "a", "b"]).choice == ("b", "a")
