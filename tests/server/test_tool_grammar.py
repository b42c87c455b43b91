"""Grammars of enforced calls, by llguidance's own matcher: what they accept and refuse, and that
whatever they accept is read completely and fits the schema, by an outside validator."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.sources import resolve
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_load import load_tokenizer
from headrace.server.parsing.answer import AnswerFormat
from headrace.server.parsing.message import message_of
from headrace.server.parsing.reasoning import ReasoningFormat
from headrace.server.parsing.tool_grammar import MAX_CALLS, tool_grammar
from headrace.server.parsing.tool_request import ToolRequest, read_tools
from headrace.structured.grammar import lark_string, lark_token

Form = Literal["hermes", "json"]
FORMS: list[Form] = ["hermes", "json"]


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "y": {"type": ["boolean", "null"]}},
            "required": ["x"],
        },
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["city", "where"],
}
TOOLS = [
    tool("get", {"type": "object", "properties": {"a": {"const": 'q"\n'}}, "required": ["a"]}),
    tool("get_weather", PARAMETERS),
    tool("now"),
]
NOW = '{"name": "now", "arguments": {}}'
WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo", "where": {"x": true}}}'


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in calls)


class Vocabulary:
    """llguidance over one tokenizer. encode: text → ids; tag: as the grammar's writer takes it."""

    def __init__(
        self,
        ll: LLTokenizer,
        encode: Callable[[str], list[int]],
        tag: Callable[[str], str],
        eos: set[int],
    ) -> None:
        self.ll, self.encode, self.tag, self.eos = ll, encode, tag, eos

    def matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self.ll, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, grammar: str, text: str) -> bool:
        matcher, ids = self.matcher(grammar), self.encode(text)
        return matcher.validate_tokens(ids) == len(ids) and (
            matcher.consume_tokens(ids) and matcher.is_accepting()
        )

    def sample(self, matcher: LLMatcher, rng: random.Random, limit: int) -> tuple[list[int], bool]:
        """Ids drawn evenly from what is allowed, and whether the grammar came to an end."""
        ids: list[int] = []
        while len(ids) < limit:
            allowed = np.flatnonzero(np.frombuffer(matcher.compute_logit_bias(), np.uint8))
            chosen = int(allowed[rng.randrange(len(allowed))]) if len(allowed) else None
            if chosen is None or chosen in self.eos:
                return ids, True
            assert matcher.consume_token(chosen)
            ids.append(chosen)
        return ids, matcher.is_accepting()


@cache
def byte_vocabulary() -> Vocabulary:
    ll = LLTokenizer("byte")
    ends = set(ll.eos_tokens) | {ll.eos_token}
    return Vocabulary(ll, lambda text: list(text.encode()), lark_string, ends)


@cache
def real(alias: str) -> tuple[Vocabulary, Tokenizer]:
    tokenizer = load_tokenizer(open_checkpoint(resolve(alias)))
    eos = list(tokenizer.eos_ids)
    ll = LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.num_ids, eos_token=eos)
    encode = partial(tokenizer.encode, add_special=False)
    return Vocabulary(ll, encode, partial(lark_token, tokenizer), set(eos)), tokenizer


ACCEPTED: list[tuple[Form, Any, bool | None, str, bool]] = [
    ("hermes", "required", None, tagged(NOW), True),
    ("hermes", "required", None, tagged(NOW, WEATHER), True),
    ("hermes", "required", None, tagged(*[NOW] * MAX_CALLS), True),
    ("hermes", "required", None, tagged(*[NOW] * (MAX_CALLS + 1)), False),
    ("hermes", "required", False, tagged(NOW, NOW), False),
    ("hermes", "now", None, tagged(NOW, NOW), False),
    ("hermes", "now", None, tagged(NOW), True),
    ("hermes", "now", None, tagged(WEATHER), False),
    ("hermes", "required", None, NOW, False),
    ("hermes", "required", None, "Sure! " + tagged(NOW), False),
    ("hermes", "required", None, "", False),
    ("json", "required", None, NOW, True),
    ("json", "required", None, f"[{NOW}, {WEATHER}]", True),
    ("json", "required", None, f"[{', '.join([NOW] * (MAX_CALLS + 1))}]", False),
    ("json", "required", False, f"[{NOW}]", False),
    ("json", "get_weather", None, WEATHER, True),
    ("json", "get_weather", None, WEATHER.replace(": ", ":"), False),
    ("json", "get_weather", None, WEATHER.replace('where": {"x": t', 'where":{"x":t'), True),
    ("json", "get_weather", None, WEATHER.replace("true", "1"), False),
    ("json", "get_weather", None, WEATHER.replace(', "where": {"x": true}', ""), False),
    ("json", "get_weather", None, WEATHER.replace("{\"x\": true}", '{"x": true, "z": 1}'), False),
    ("json", "get_weather", None, WEATHER.replace("Oslo", "Trondheim"), False),
    ("json", "required", None, NOW.replace("now", "rm"), False),
    ("json", "required", None, NOW + " ", False),
    ("json", "get", None, '{"name": "get", "arguments": {"a": "q\\"\\n"}}', True),
]  # fmt: skip


def asked(choice: Any, parallel: bool | None = None) -> ToolRequest:
    if choice != "required":
        choice = {"type": "function", "function": {"name": choice}}
    return read_tools(TOOLS, choice, parallel)


@pytest.mark.parametrize(("form", "choice", "parallel", "text", "want"), ACCEPTED)
def test_what_is_accepted(
    form: Form, choice: Any, parallel: bool | None, text: str, want: bool
) -> None:
    vocabulary = byte_vocabulary()
    grammar = tool_grammar(asked(choice, parallel), form, vocabulary.tag)
    assert vocabulary.accepts(grammar, text) == want


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_comes_first(form: Form) -> None:
    vocabulary = byte_vocabulary()
    calls = tagged(NOW) if form == "hermes" else NOW
    for kind, text, want in (
        ("tagged", calls, True),
        ("tagged", f"<think>\nI </think\n</think>\n\n{calls}", True),
        ("tagged", f"thought</think>{calls}", False),
        ("opened", f"\nthought\n</think>\n\n{calls}", True),
        ("opened", calls, False),
        ("none", f"<think></think>{calls}", False),
    ):
        grammar = tool_grammar(asked("now"), form, vocabulary.tag, kind)
        assert vocabulary.accepts(grammar, text) == want, (kind, text)


def check(form: Form, request: ToolRequest, kind: ReasoningFormat, text: str) -> int:
    """Everything in the text is calls (and reasoning); each fits its schema. Returns how many."""
    count = itertools.count()
    names = tuple(f.name for f in request.callable)
    reader = AnswerFormat(form, kind, names, request.parallel).parser(lambda: f"c{next(count)}")
    answer = message_of([*reader.push(text), *reader.finish()])
    assert answer["content"] is None, text
    calls = answer["tool_calls"]
    assert len(calls) == reader.num_complete
    schemas = {f.name: f.parameters for f in request.callable}
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, schemas[call["function"]["name"]])
    return len(calls)


@pytest.mark.parametrize("kind", ["none", "tagged", "opened"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_random_paths_are_read_completely(form: Form, choice: str, kind: ReasoningFormat) -> None:
    vocabulary = byte_vocabulary()
    request = asked(choice)
    grammar = tool_grammar(request, form, vocabulary.tag, kind)
    rng, ended = random.Random(f"{form} {choice} {kind}"), 0
    opening = {"none": "", "tagged": "<think>I think.</think>\n", "opened": "So.\n</think>\n\n"}
    for _ in range(12):
        matcher = vocabulary.matcher(grammar)
        assert matcher.consume_tokens(vocabulary.encode(opening[kind]))
        ids, whole = vocabulary.sample(matcher, rng, 1500)
        if whole:
            ended += 1
            assert check(form, request, kind, opening[kind] + bytes(ids).decode()) >= 1
    assert ended >= 8


@pytest.mark.models
@pytest.mark.parametrize("form", FORMS)
def test_random_tokens_of_smollm2_are_read_completely(form: Form) -> None:
    random_tokens(real("smollm2-135m"), form)


@pytest.mark.large
@pytest.mark.parametrize("form", FORMS)
def test_random_tokens_of_qwen_are_read_completely(form: Form) -> None:
    random_tokens(real("qwen2.5-coder-0.5b"), form)


def random_tokens(found: tuple[Vocabulary, Tokenizer], form: Form) -> None:
    vocabulary, tokenizer = found
    rng, ended = random.Random(form), 0
    for choice, parallel in (("required", None), ("required", False), ("get_weather", None)):
        request = asked(choice, parallel)
        grammar = tool_grammar(request, form, vocabulary.tag)
        for _ in range(8):
            ids, whole = vocabulary.sample(vocabulary.matcher(grammar), rng, 400)
            if whole:
                ended += 1
                number = check(form, request, "none", tokenizer.decode(ids))
                assert 1 <= number <= (MAX_CALLS if request.parallel and not request.named else 1)
    assert ended >= 18


@pytest.mark.large
def test_qwen_s_tags_are_its_own_tokens() -> None:
    """The tag is one token, special to llguidance: spelt out in letters it would be refused, and a
    model that was trained on the token would be held off it."""
    vocabulary, _ = real("qwen2.5-coder-0.5b")
    grammar = tool_grammar(asked("now"), "hermes", vocabulary.tag)
    [opening] = vocabulary.encode("<tool_call>")
    assert f"<[{opening}]>" in grammar
    assert vocabulary.accepts(grammar, tagged(NOW))
    mask = np.frombuffer(vocabulary.matcher(grammar).compute_logit_bias(), np.uint8)
    assert list(np.flatnonzero(mask)) == [opening]


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": "integer", "minimum": -3, "maximum": 30},
            {"type": "string", "maxLength": 3},
            {"enum": ["a", 1, None, "é\\"]},
            {"const": {"k": [1, "\x01"]}},
            {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 1}]},
        ]
    ),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner)
        | st.builds(
            lambda properties, count: {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:count],
            },
            st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3),
            st.integers(0, 3),
        )
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.text(max_size=4), SCHEMAS, min_size=1, max_size=3),
    st.sampled_from(FORMS),
    st.integers(0, 2**32),
)
def test_any_schema_s_random_calls_fit_it(
    properties: dict[str, Any], form: Form, seed: int
) -> None:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    request = read_tools([tool("f", schema)], "required", False)
    vocabulary = byte_vocabulary()
    matcher = vocabulary.matcher(tool_grammar(request, form, vocabulary.tag))
    ids, whole = vocabulary.sample(matcher, random.Random(seed), 800)
    if whole:
        assert check(form, request, "none", bytes(ids).decode()) == 1
