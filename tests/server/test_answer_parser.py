"""Reading tool calls and reasoning: golden texts written by hand from the formats' descriptions,
and properties: how a text is cut never matters, nothing is lost, arguments arrive as they come."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.parsing.answer import AnswerFormat, AnswerParser
from headrace.server.parsing.json_value import JsonValue
from headrace.server.parsing.pieces import (
    Collector,
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)

HERMES = AnswerFormat(tools="hermes", functions=("weather", "time"))
JSON = AnswerFormat(tools="json", functions=("weather", "time"))
OSLO = '{"city": "Oslo"}'


def parser(form: AnswerFormat) -> AnswerParser:
    count = itertools.count()
    return form.parser(lambda: f"call_{next(count)}")


def joined(pieces: list[Piece]) -> list[Piece]:
    sink = Collector()
    for piece in pieces:
        match piece:
            case Content(text):
                sink.content(text)
            case Reasoning(text):
                sink.reasoning(text)
            case ToolCallStart(index, call_id, name):
                sink.start(index, call_id, name)
            case ToolCallArguments(index, fragment):
                sink.arguments(index, fragment)
    return sink.take()


def read(form: AnswerFormat, text: str, cuts: list[int] | None = None) -> list[Piece]:
    """The joined pieces of a text that arrives in parts of these lengths, or one by one."""
    reader, pieces, at = parser(form), [], 0
    for length in cuts if cuts is not None else [1] * len(text):
        pieces += reader.push(text[at : at + length])
        at += length
    pieces += reader.push(text[at:])
    return joined(pieces + reader.finish())


def call(index: int, name: str, arguments: str) -> list[Piece]:
    return [ToolCallStart(index, f"call_{index}", name), ToolCallArguments(index, arguments)]


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOLDEN: dict[str, tuple[AnswerFormat, str, list[Piece]]] = {
    "one call": (HERMES, tagged("weather", OSLO), call(0, "weather", OSLO)),
    "layout behind a call": (HERMES, tagged("time", "{}") + " \n", call(0, "time", "{}")),
    "text behind a call": (
        HERMES,
        tagged("time", "{}") + "\n\nDone.",
        [*call(0, "time", "{}"), Content("Done.")],
    ),
    "an empty block": (
        HERMES,
        "<tool_call>{}</tool_call>",
        [Content("<tool_call>{}</tool_call>")],
    ),
    "no name": (JSON, '{"arguments": {}} ', [Content('{"arguments": {}} ')]),
    "no JSON escape": (
        HERMES,
        tagged("time", '{"a": "\\u00g0"}'),
        [*call(0, "time", '{"a": "\\u00'), Content('g0"}}\n</tool_call>')],
    ),
    "text around calls": (
        HERMES,
        f"Let me look.\n{tagged('weather', OSLO)}\n{tagged('time', '{}')}\n\nDone.\n",
        [
            Content("Let me look."),
            *call(0, "weather", OSLO),
            *call(1, "time", "{}"),
            Content("\n\nDone.\n"),
        ],
    ),
    "arguments first": (
        HERMES,
        '<tool_call>{"arguments": {"a": [1, {"b": "}"}]}, "name": "time"}</tool_call>',
        call(0, "time", '{"a": [1, {"b": "}"}]}'),
    ),
    "arguments as the model spaced them": (
        HERMES,
        '<tool_call>\n{ "name" : "time" , "arguments" :\n{ "a" :1.50e+3,\t"b": [ ] }\n}\n'
        "</tool_call>",
        call(0, "time", '{ "a" :1.50e+3,\t"b": [ ] }'),
    ),
    "tags in strings": (
        HERMES,
        tagged("time", '{"a": "</tool_call><tool_call>\\"}"}'),
        call(0, "time", '{"a": "</tool_call><tool_call>\\"}"}'),
    ),
    "arguments written as a string": (
        HERMES,
        '<tool_call>\n{"name": "time", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
        call(0, "time", '{"a": 1}'),
    ),
    "no arguments": (HERMES, '<tool_call>{"name": "time"}</tool_call>', call(0, "time", "{}")),
    "null arguments": (
        HERMES,
        '<tool_call>{"name": "time", "arguments": null}</tool_call>',
        call(0, "time", "{}"),
    ),
    "line break in a string": (
        HERMES,
        tagged("time", '{"code": "a\nb"}'),
        call(0, "time", '{"code": "a\\u000ab"}'),
    ),
    "a name that is no text": (JSON, '{"name": null}', [Content('{"name": null}')]),
    "arguments that are not Unicode": (
        JSON,
        '{"name": "time", "arguments": "{\\"a\\": \\"\\ud800\\"}"}',
        [Content('{"name": "time", "arguments": "{\\"a\\": \\"\\ud800\\"}"}')],
    ),
    "surplus brace": (
        HERMES,
        '<tool_call>\n{"name": "time", "arguments": {}}}\n</tool_call>',
        call(0, "time", "{}"),
    ),
    "doubled braces": (
        HERMES,
        f'{{{{"name": "weather", "arguments": {OSLO}}}}}\n',
        call(0, "weather", OSLO),
    ),
    "doubled braces between tags": (
        HERMES,
        tagged("weather", OSLO).replace("\n{", "\n{{").replace("}\n", "} }\n"),
        call(0, "weather", OSLO),
    ),
    "missing brace": (
        HERMES,
        '<tool_call>\n{"name": "time", "arguments": {}\n</tool_call>',
        call(0, "time", "{}"),
    ),
    "missing closing tag": (
        HERMES,
        f'<tool_call>{{"name": "time", "arguments": {{}}}}{tagged("weather", OSLO)}',
        [*call(0, "time", "{}"), *call(1, "weather", OSLO)],
    ),
    "unknown function": (HERMES, tagged("rm", "{}"), [Content(tagged("rm", "{}"))]),
    "broken before the arguments": (
        HERMES,
        '<tool_call>\n{"name" "time"}\n</tool_call> ',
        [Content('<tool_call>\n{"name" "time"}\n</tool_call> ')],
    ),
    "broken inside the arguments": (
        HERMES,
        tagged("time", '{"a": 01}'),
        [*call(0, "time", '{"a": 0'), Content("1}}\n</tool_call>")],
    ),
    "arguments that are a list": (HERMES, tagged("time", "[]"), [Content(tagged("time", "[]"))]),
    "cut in the name": (
        HERMES,
        'So:\n<tool_call>\n{"name": "ti',
        [Content('So:\n<tool_call>\n{"name": "ti')],
    ),
    "cut in the arguments": (
        HERMES,
        '<tool_call>\n{"name": "time", "arguments": {"a": tr',
        call(0, "time", '{"a": tr'),
    ),
    "cut in the tag": (HERMES, "a\n<tool_ca", [Content("a\n<tool_ca")]),
    "a call after a broken one": (
        HERMES,
        f"<tool_call>{tagged('time', '{}')}",
        [Content("<tool_call>"), *call(0, "time", "{}")],
    ),
    "no call": (HERMES, " 1 < 2 <b> \n", [Content(" 1 < 2 <b> \n")]),
    "hermes without tags": (
        HERMES,
        f'{{"name": "weather", "arguments": {OSLO}}}',
        call(0, "weather", OSLO),
    ),
    "json": (JSON, f'\n{{"name": "weather", "parameters": {OSLO}}}\n', call(0, "weather", OSLO)),
    "json list in a fence": (
        JSON,
        f'```json\n[{{"name": "weather", "arguments": {OSLO}}}, '
        '{"name": "time", "arguments": {}}]\n```\nThat is all.',
        [*call(0, "weather", OSLO), *call(1, "time", "{}"), Content("That is all.")],
    ),
    "json behind a list": (
        JSON,
        '[{"name": "time", "arguments": {}}] {"name": "time", "arguments": {}}]',
        [*call(0, "time", "{}"), *call(1, "time", "{}"), Content("]")],
    ),
    "json in a row": (
        JSON,
        '{"type": "function", "name": "time", "arguments": {}}\n{"name": "time", "arguments": {}}',
        [*call(0, "time", "{}"), *call(1, "time", "{}")],
    ),
    "json that is no call": (
        JSON,
        '{"name": "Bob", "age": 3} ',
        [Content('{"name": "Bob", "age": 3} ')],
    ),
    "json with another key": (
        JSON,
        '{"name": "time", "arguments": {}, "x": 1}',
        [*call(0, "time", "{}"), Content(": 1}")],
    ),
    "code in a fence": (JSON, "```python\nf()\n```", [Content("```python\nf()\n```")]),
    "json behind text": (
        JSON,
        'I call {"name": "time", "arguments": {}}',
        [Content('I call {"name": "time", "arguments": {}}')],
    ),
    "json list cut short": (
        JSON,
        '[{"name": "time", "arguments": {}}, {"na',
        [*call(0, "time", "{}"), Content(', {"na')],
    ),
}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_texts(name: str) -> None:
    form, text, want = GOLDEN[name]
    assert read(form, text, [len(text)]) == want
    assert read(form, text) == want


REASONING: list[tuple[str, str, list[Piece]]] = [
    ("tagged", "<think>\nA sum.\n</think>\n\n4", [Reasoning("A sum."), Content("4")]),
    ("tagged", "\n<think>A\n\nB</think>4", [Reasoning("A\n\nB"), Content("4")]),
    ("tagged", "<think>\n\n</think>\n\n4", [Content("4")]),
    ("tagged", "4 <think>no</think>", [Content("4 <think>no</think>")]),
    ("tagged", " <thin", [Content(" <thin")]),
    ("tagged", "<think>cut </thi", [Reasoning("cut </thi")]),
    ("opened", "A sum.\n</think>\n\n4\n", [Reasoning("A sum."), Content("4\n")]),
    ("opened", "<think>A</think>4", [Reasoning("A"), Content("4")]),
    ("opened", "cut by length", [Reasoning("cut by length")]),
]


@pytest.mark.parametrize(("kind", "text", "want"), REASONING)
def test_reasoning(kind: Any, text: str, want: list[Piece]) -> None:
    form = AnswerFormat(reasoning=kind)
    assert read(form, text, [len(text)]) == want
    assert read(form, text) == want


def test_reasoning_before_calls() -> None:
    form = AnswerFormat(tools="hermes", functions=("time",), reasoning="tagged")
    text = f"<think>\nI need {tagged('time', '{}')}.\n</think>\n\n{tagged('time', '{}')}"
    want = [Reasoning(f"I need {tagged('time', '{}')}."), *call(0, "time", "{}")]
    assert read(form, text) == want


def test_tokens_of_the_reasoning_are_counted() -> None:
    """What is inside when a part comes; a tag that the model writes itself is not."""
    for kind, parts, want in (
        ("tagged", ["<think>", "A", "</think>", "4"], [False, True, True, False]),
        ("tagged", ["4", "5"], [False, False]),
        ("opened", ["\n", "A", "</thi", "nk>", "4"], [True, True, True, True, False]),
        ("none", ["<think>", "A"], [False, False]),
    ):
        form = AnswerFormat(tools="hermes", functions=("time",), reasoning=kind)
        reader, inside = parser(form), []
        for part in parts:
            inside.append(reader.reasoning)
            reader.push(part)
        assert inside == want


def test_one_call_only_when_calls_may_not_be_parallel() -> None:
    form = AnswerFormat(tools="hermes", functions=("time",), parallel=False)
    good, broken = tagged("time", "{}"), tagged("time", "{]")
    text = f"{tagged('time', '[1')}{broken}{good}\n{good}\nend"
    got = read(form, text)
    # What breaks inside its arguments is no complete call; the first complete one is the last.
    assert [p.index for p in got if isinstance(p, ToolCallStart)] == [0, 1]
    assert [p.fragment for p in got if isinstance(p, ToolCallArguments)] == ["{", "{}"]
    assert got[-1] == Content("\nend")


@pytest.mark.parametrize(
    ("text", "engine", "want"),
    [
        (tagged("time", "{}"), "stop", "tool_calls"),
        (tagged("time", "{}"), "length", "length"),
        (tagged("time", '{"a": 01}'), "stop", "stop"),
        (tagged("rm", "{}"), "stop", "stop"),
        ("Hello", "stop", "stop"),
        ("Hello", "abort", "abort"),
    ],
)
def test_finish_reason_says_tool_calls_only_for_a_complete_call(
    text: str, engine: str, want: str
) -> None:
    """Row 48."""
    reader = parser(HERMES)
    reader.push(text)
    reader.finish()
    assert reader.finish_reason(engine) == want


def test_arguments_arrive_as_they_come() -> None:
    text = tagged("weather", OSLO)
    reader = parser(HERMES)
    begin = text.index(OSLO)
    assert reader.push(text[:begin]) == []
    for character in OSLO:
        pieces = reader.push(character)
        assert pieces[-1] == ToolCallArguments(0, character)
    assert reader.num_complete == 1


def test_plain_formats_need_no_parser() -> None:
    assert AnswerFormat().plain
    assert AnswerFormat(tools="hermes").plain
    assert AnswerFormat(tools="none", functions=("f",)).plain
    assert not HERMES.plain
    assert not AnswerFormat(reasoning="tagged").plain


FORMS = [
    AnswerFormat(tools, reasoning, ("weather", "time"), parallel)
    for tools in ("hermes", "json")
    for reasoning in ("none", "tagged", "opened")
    for parallel in (True, False)
]
#: Splinters of the formats, so that random texts come near them.
SPLINTERS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool", "_call>", "```json\n", "```"),
    *("{", "}", "[", "]", ",", ":", '"', "\\", "\n", " ", "\u2003", "a", "é", "👪", "1", "-0.5e1"),
    *("true", "nul", "\\u00e9", "\\x", "\x01", '"name"', '"arguments"', '"time"', '"rm"', "{}"),
    '{"name": "time", "arguments": {',
    '{"name": "time", "arguments": {"a": "b"}}',
    '{"arguments": {"a": 1}, "name": "weather"}',
    tagged("time", "{}"),
    tagged("weather", OSLO) + "\n",
    '"arguments": "{\\"a\\": 2}"',
]
TEXTS = st.lists(st.sampled_from(SPLINTERS), max_size=12).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FORMS), TEXTS, st.lists(st.integers(1, 9), max_size=40))
def test_how_a_text_is_cut_never_matters(form: AnswerFormat, text: str, cuts: list[int]) -> None:
    whole = read(form, text, [len(text)])
    assert read(form, text, cuts) == whole
    assert read(form, text) == whole


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FORMS[:1] + FORMS[6:7]), TEXTS)
def test_nothing_is_lost(form: AnswerFormat, text: str) -> None:
    """Without a call the content is the text. Complete calls hold JSON objects; of a text with
    calls, everything but layout is found again, in order."""
    pieces = read(form, text)
    if not any(isinstance(p, ToolCallStart) for p in pieces):
        assert pieces == ([Content(text)] if text else [])
        return
    reader = parser(form)
    reader.push(text)
    reader.finish()
    objects = 0
    at = 0
    for piece in pieces:
        if isinstance(piece, ToolCallArguments):
            try:
                objects += isinstance(json.loads(piece.fragment), dict)
            except ValueError:
                assert piece.fragment.startswith("{")
        elif isinstance(piece, Content):
            body = piece.text.strip()
            at = text.find(body, at)
            assert at >= 0
            at += len(body)
    assert objects == reader.num_complete


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
ARGUMENTS = st.builds(
    lambda value, indent, ascii: json.dumps(value, indent=indent, ensure_ascii=ascii),
    st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["weather", "time"]), ARGUMENTS), min_size=1, max_size=4))
def test_every_json_object_passes_unchanged(calls: list[tuple[str, str]]) -> None:
    """The arguments are the very text that the model wrote, for whatever `json` can write."""
    want = [piece for i, (name, text) in enumerate(calls) for piece in call(i, name, text)]
    assert read(HERMES, "\n".join(tagged(name, text) for name, text in calls)) == want
    objects = ", ".join(f'{{"arguments": {text}, "name": "{name}"}}' for name, text in calls)
    assert read(JSON, f"[{objects}]") == want


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SPLINTERS), max_size=8).map("".join))
def test_the_json_reader_agrees_with_the_json_module(text: str) -> None:
    """Complete exactly where `json` takes an object (line breaks in strings allowed)."""
    text = "{" + text
    try:
        json.loads(text, strict=False)
        valid = text.endswith("}")
    except (ValueError, RecursionError):
        valid = False
    reader = JsonValue()
    end = reader.push(text, 0)
    if valid:
        assert reader.done
        assert end == len(text)
    elif reader.done:
        json.loads(text[:end], strict=False)
    else:
        with pytest.raises(ValueError):  # noqa: PT011
            json.loads(text[: end + 1], strict=False)


def test_endless_structures_cost_only_their_own_length() -> None:
    """Depth, white space and half tags in huge numbers: no recursion, no quadratic time."""
    for text in (
        '<tool_call>{"name": "time", "arguments": {"a": ' + "[" * 200_000,
        "<tool_call>" + " " * 200_000,
        "\n" * 200_000,
        "<tool_cal" * 30_000,
        "<tool_call>" * 30_000,
        '{"name": "' + "x" * 200_000,
        '{"name": ' + "9" * 200_000 + "}",
        '{"name": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"name": "time", "arguments": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ):
        for start in ("", "word "):
            pieces = read(HERMES, start + text, [7] * (len(text) // 7))
            assert pieces
