"""Every kind of structured output on a real model: what comes out always fits, whatever the seed.

Oracles: json and jsonschema, re. Prompts say nothing of the form that is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from headrace import LLM, SamplingParams, StructuredOutputs
from headrace.engine.outputs import CompletionOutput
from headrace.errors import UsageError

pytestmark = pytest.mark.models

PROMPTS = ["The old man looked at the sea and said", "def parse(", "Q: How are you?\nA:"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b\n", "ü"]}, "maxItems": 2},
        "flag": {"type": ["boolean", "null"]},
        "kind": {"const": 'x"y'},
    },
    "required": ["name", "age", "tags", "flag", "kind"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": -9, "maximum": 9},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
GBNF = 'root ::= item ("," " " item)*\nitem ::= [a-c] "\\x41"? | "\\u00e9"\n'


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", max_model_len=512, max_num_seqs=16) as model:
        yield model


def outputs(
    llm: LLM, spec: StructuredOutputs, *, count: int = 6, **params: Any
) -> list[CompletionOutput]:
    """`count` seeded samples of every prompt."""
    settings = {"max_tokens": 200, "temperature": 1.0, "seed": 7, "n": count, **params}
    results = llm.generate(PROMPTS, SamplingParams(structured_outputs=spec, **settings))
    return [output for result in results for output in result.outputs]


@pytest.mark.parametrize("schema", [PERSON, TREE])
def test_json_validates(llm: LLM, schema: dict) -> None:
    done = 0
    for output in outputs(llm, StructuredOutputs(json=schema)):
        if output.finish_reason == "length":
            continue
        assert output.finish_reason == "stop"
        jsonschema.validate(json.loads(output.text), schema)
        assert json.dumps(json.loads(output.text), ensure_ascii=False, separators=(",", ":"))
        done += 1
    assert done >= 6


def test_any_object_is_an_object(llm: LLM) -> None:
    for output in outputs(llm, StructuredOutputs(json_object=True)):
        assert output.finish_reason in ("stop", "length")
        if output.finish_reason == "stop":
            assert isinstance(json.loads(output.text), dict)
        else:
            with pytest.raises(json.JSONDecodeError):
                json.loads(output.text)


@pytest.mark.parametrize(
    "pattern", [r"[0-9]{3}-[0-9]{4}", r"(yes|no), [A-Z][a-z]{0,8}\.", r"[äöü]{2}😀|\p{Lu}{3}"]
)
def test_a_regex_matches_the_whole_text(llm: LLM, pattern: str) -> None:
    texts = [o.text for o in outputs(llm, StructuredOutputs(regex=pattern))]
    python = pattern.replace(r"\p{Lu}", "[^\\W\\d_a-z]")
    assert all(re.fullmatch(python, text) for text in texts)
    assert len(set(texts)) > 3


def test_a_choice_is_one_of_the_choices(llm: LLM) -> None:
    choices = ["yes", "yes, but", 'a "quoted"\nline', "日本", "<|im_end|>", "\\d+"]
    texts = {o.text for o in outputs(llm, StructuredOutputs(choice=choices), count=16, top_p=1.0)}
    assert texts <= set(choices)
    assert len(texts) > 1
    for choice in choices:
        only = outputs(llm, StructuredOutputs(choice=[choice]), count=1)
        assert {(o.text, o.finish_reason) for o in only} == {(choice, "stop")}


def test_grammars_in_both_dialects(llm: LLM) -> None:
    lark = 'start: item (", " item)*\nitem: /[a-c]/ "A"? | "é"\n'
    for grammar in (GBNF, lark):
        for output in outputs(llm, StructuredOutputs(grammar=grammar), max_tokens=40):
            if output.finish_reason == "stop":
                assert re.fullmatch("(?:[a-c]A?|é)(?:, (?:[a-c]A?|é))*", output.text)
            else:
                assert output.finish_reason == "length"


def test_a_grammar_reaches_schemas_and_special_tokens(llm: LLM) -> None:
    grammar = 'start: <|im_start|> "call " %json {"enum": [{"a": [1, 2]}, {"b": 5}]} <|im_end|>'
    params = {"skip_special_tokens": False, "ignore_eos": True}
    for output in outputs(llm, StructuredOutputs(grammar=grammar), **params):
        assert output.finish_reason == "stop"
        assert output.text in {
            f"<|im_start|>call {body}<|im_end|>" for body in ('{"a":[1,2]}', '{"b":5}')
        }


def test_greedy_logprobs_penalties_and_streams_hold_the_mask(llm: LLM) -> None:
    spec = StructuredOutputs(json=PERSON)
    kinds: list[dict] = [
        {"temperature": 0.0, "n": 1},
        {"temperature": 0.0, "n": 1, "logprobs": 5, "trace": 3},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2, "seed": 3},
        {"logit_bias": dict.fromkeys(range(200, 300), 20.0), "seed": 3},
    ]
    for kind in kinds:
        for output in outputs(llm, spec, **{"count": 2, **kind}):
            assert output.finish_reason == "stop", output.text
            jsonschema.validate(json.loads(output.text), PERSON)
    params = SamplingParams(max_tokens=200, seed=5, structured_outputs=spec)
    [whole] = llm.generate(PROMPTS[0], params)
    assert "".join(d.text for d in llm.stream(PROMPTS[0], params)) == whole.outputs[0].text


def test_row_54_a_bias_to_blanks_cannot_make_json_endless(llm: LLM) -> None:
    blanks = [
        i
        for i in range(llm.tokenizer.num_ids)
        if not llm.tokenizer.token_bytes(i).strip(b" \n\t\r")
    ]
    bias = dict.fromkeys(blanks, 20.0)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["properties"]["n"]["maximum"] = 10**6  # type: ignore[index]
    schema["properties"]["n"]["minimum"] = 0  # type: ignore[index]
    schema["additionalProperties"] = False
    for output in outputs(llm, StructuredOutputs(json=schema), count=2, logit_bias=bias):
        assert output.finish_reason == "stop"
        assert re.fullmatch(r'\{"n":[0-9]+\}', output.text)
    text = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
    for output in outputs(
        llm, StructuredOutputs(json=text), count=2, logit_bias=bias, max_tokens=30
    ):
        assert output.finish_reason == "length"  # the blanks are in the string, and allowed there
        assert re.fullmatch(r'\{"s":"[^"]? *', output.text)


def test_preemption_neighbours_and_chunks_change_nothing(llm: LLM) -> None:
    spec = StructuredOutputs(json=PERSON)
    params = SamplingParams(structured_outputs=spec, seed=11, n=4, max_tokens=120)
    plain = SamplingParams(seed=1, n=4, max_tokens=60)
    alone = [llm.generate(p, params)[0] for p in PROMPTS]
    together = llm.generate([*PROMPTS, *PROMPTS], [params] * 3 + [plain] * 3)
    small = LLM(
        "smollm2-135m", max_model_len=192, max_num_seqs=16, kv_cache_memory="13MiB",
        max_num_batched_tokens=16,
    )  # fmt: skip
    with small:
        squeezed = small.generate([*PROMPTS, *PROMPTS], [params] * 3 + [plain] * 3)
    assert sum(r.metrics.num_preemptions for r in squeezed) > 0
    for a, b, c in zip(alone, together, squeezed, strict=False):
        texts = [o.text for o in a.outputs]
        assert texts == [o.text for o in b.outputs] == [o.text for o in c.outputs]
        assert len(set(texts)) > 1


def test_what_cannot_be_honoured_is_refused_before_anything_runs(llm: LLM) -> None:
    good = SamplingParams(max_tokens=4)
    bad = SamplingParams(structured_outputs=StructuredOutputs(json={"uniqueItems": True}))
    with pytest.raises(UsageError, match="uniqueItems"):
        llm.generate(PROMPTS[:2], [good, bad])
    assert not llm.engine.has_work
    with pytest.raises(UsageError, match="needs its compiled constraint"):
        llm.engine.add([1], SamplingParams(structured_outputs=StructuredOutputs(json_object=True)))


@pytest.mark.parametrize(
    "name",
    [
        "gemma3-270m",
        pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.large),
    ],
)
def test_other_vocabularies_hold_at_any_temperature(name: str) -> None:
    """Padded heads, byte tokens, a normaliser: at temperature 5 nearly any allowed id comes up."""
    with LLM(name, max_model_len=256, max_num_seqs=16) as model:
        results = outputs(model, StructuredOutputs(json=PERSON), temperature=5.0, count=4)
        assert sum(o.finish_reason == "stop" for o in results) >= 9
        for output in results:
            assert max(output.token_ids) < model.tokenizer.num_ids
            if output.finish_reason == "stop":
                jsonschema.validate(json.loads(output.text), PERSON)
            else:
                assert output.finish_reason == "length"


def test_a_grammar_that_is_too_slow_ends_its_own_request_only(llm: LLM) -> None:
    slow = SamplingParams(
        temperature=1.0,
        seed=2,
        max_tokens=300,
        ignore_eos=True,
        logit_bias=dict.fromkeys(llm.tokenizer.eos_ids, -100.0),
        structured_outputs=StructuredOutputs(grammar='start: s\ns: s s | s s s | "a" | ""'),
    )
    plain = SamplingParams(temperature=0, max_tokens=40)
    [alone] = llm.generate(PROMPTS[0], plain)
    beside, ended = llm.generate([PROMPTS[0], PROMPTS[1]], [plain, slow])
    assert beside.outputs[0].text == alone.outputs[0].text
    assert ended.outputs[0].finish_reason == "error"
    assert "The structured output cannot go on: " in (ended.outputs[0].error or "")
    assert re.fullmatch("a+", ended.outputs[0].text)
