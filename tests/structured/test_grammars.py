"""Masks against oracles that know no grammar library, on real vocabularies.

Choices: a token may come next where some choice goes on with its bytes. Schemas: whatever a walk
writes, jsonschema accepts. Texts: a literal comes out byte by byte, control tokens included.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine.model import open_model
from headrace.errors import UsageError
from headrace.formats.tokenizer import Tokenizer
from headrace.structured.compiler import GrammarCompiler
from headrace.structured.constraint import GrammarError
from headrace.structured.grammar import lark_string, lark_token
from headrace.structured.spec import StructuredOutputs
from structured.walks import allowed, at_random, walk

pytestmark = pytest.mark.models

SMOLLM = "smollm2-135m"
SOURCE = Path(__file__).parents[2] / "src"
LARGE = [pytest.param(n, marks=pytest.mark.large) for n in ("qwen2.5-coder-0.5b",)]
_compilers: dict[str, GrammarCompiler] = {}


def compiler(name: str = SMOLLM) -> GrammarCompiler:
    if name not in _compilers:
        _compilers[name] = GrammarCompiler(open_model(name).tokenizer)
    return _compilers[name]


def tokenizer(name: str = SMOLLM) -> Tokenizer:
    return compiler(name)._tokenizer


# ---- masks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SMOLLM, "gemma3-270m", *LARGE])
def test_a_mask_of_choices_is_what_the_bytes_say(name: str) -> None:
    """For every id of the vocabulary. Where only one byte can follow, the mask may leave just the
    token that the tokenizer would use."""
    t = tokenizer(name)
    choices = ["yes", "yesterday", "no", "nothing at all", "Ünïcode", "日本語", " yes", "12", "123"]
    data = [c.encode() for c in choices]
    pieces = [b"" if t.is_special(i) else t.token_bytes(i) for i in range(t.num_ids)]
    spelling: dict[bytes, set[int]] = {}
    for i, piece in enumerate(pieces):
        spelling.setdefault(piece, set()).add(i)
    for seed in range(6):
        constraint = compiler(name).compile(StructuredOutputs(choice=choices)).start()
        choose = at_random(seed, t)
        done = b""
        for _ in range(40):
            rests = {c[len(done) :] for c in data if c.startswith(done)}
            beginnings = {rest[:n] for rest in rests for n in range(1, len(rest) + 1)}
            want = set[int]().union(*(spelling.get(b, ()) for b in beginnings))
            if done in data:
                want |= set(t.eos_ids)
            got = set(allowed(constraint, t.num_ids))
            if len({rest[:1] for rest in rests} - {b""}) == 1 and done not in data:
                assert got
                assert got <= want
            else:
                assert got == want
            token = choose(sorted(got))
            if token in t.eos_ids:
                break
            constraint.accept(token)
            done += pieces[token]
            if constraint.finished:
                break
        assert done in data


def test_a_mask_of_a_schema_is_what_the_matcher_accepts_token_by_token() -> None:
    t = tokenizer()
    schema = {"type": "object", "properties": {"a": {"type": ["string", "number"]}}}
    grammar = compiler().compile(StructuredOutputs(json=schema))
    num_states = 0
    for text in ('{"a":"x y', '{"a":-1', '{"a":"\\', '{"zz":[1,', '{"a":1e'):
        constraint = grammar.start()
        for token in t.encode(text, add_special=False):
            constraint.accept(token)
        got = set(allowed(constraint, t.num_ids))
        matcher = constraint._matcher
        want = {i for i in range(t.num_ids) if matcher.validate_tokens([i]) == 1}
        if matcher.compute_ff_tokens():
            assert got <= want
        else:
            assert got == want
            num_states += 1
    assert num_states >= 4


def test_forks_go_their_own_ways() -> None:
    t = tokenizer()
    grammar = compiler().compile(StructuredOutputs(regex="(ab|cd)(ef|gh)"))
    first = grammar.start()
    [c] = t.encode("c", add_special=False)
    [d] = t.encode("d", add_special=False)
    first.accept(c)
    other = first.fork()
    before = allowed(first, t.num_ids)
    other.accept(d)
    assert allowed(first, t.num_ids) == before
    assert allowed(other, t.num_ids) != before
    with pytest.raises(GrammarError):
        first.accept(c)
    with pytest.raises(GrammarError):
        first.mask()
    allowed(other, t.num_ids)
    allowed(grammar.start(), t.num_ids)


# ---- texts --------------------------------------------------------------------------------------

TEXTS = [
    "<|im_end|>", "x<|im_start|>y", "<end_of_turn>", "<h1>&nbsp;</h1>", "<tool_call>\n{",
    'a "q"\t\r\n\x01\x7f', "日本 👩\u200d👩\u200d👧", "\u2028\u00a0\ufeff", "  leading", "e\u0301",
    "\\d+ \\", "(a|b)*/#%{",
]  # fmt: skip


@pytest.mark.parametrize("name", [SMOLLM, "gemma3-270m", *LARGE])
def test_a_literal_comes_out_byte_by_byte(name: str) -> None:
    t = tokenizer(name)
    for text in TEXTS:
        for spec in (
            StructuredOutputs(choice=[text]),
            StructuredOutputs(grammar=f"start: {lark_string(text)}"),
            StructuredOutputs(regex=re.escape(text).replace("\\\n", "\n")),
        ):
            got = walk(compiler(name).compile(spec), t, at_random(1, t))
            assert got == text
        quoted = walk(compiler(name).compile(StructuredOutputs(json={"const": text})), t, min)
        assert quoted is not None
        assert json.loads(quoted) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4, unique=True))
def test_any_texts_can_be_chosen(texts: list[str]) -> None:
    trouble = None
    try:
        got = walk(compiler().compile(StructuredOutputs(choice=texts)), tokenizer(), max)
    except (GrammarError, UsageError) as error:
        trouble = str(error)
    if trouble is None:
        assert got in texts
    else:  # this vocabulary lacks a dozen bytes
        assert "no token can come next" in trouble
        have = {tokenizer().token_bytes(i) for i in range(tokenizer().num_ids)}
        assert any(bytes([b]) not in have for text in texts for b in text.encode())


@pytest.mark.parametrize("name", [SMOLLM, "gemma3-270m", *LARGE])
def test_control_tokens_and_markers_can_be_named(name: str) -> None:
    t = tokenizer(name)
    for marker in ("<|im_start|>", "<start_of_turn>", "<tool_call>", "<unheard_of>"):
        grammar = f"start: {lark_token(t, marker)} /[ab]/ {lark_token(t, marker)}"
        text = walk(compiler(name).compile(StructuredOutputs(grammar=grammar)), t, at_random(3, t))
        assert text in (f"{marker}a{marker}", f"{marker}b{marker}")


def test_gbnf_means_what_it_means_to_llama_cpp() -> None:
    t = tokenizer()
    gbnf = (
        'root ::= "\\x41\\u00e9\\U0001F600" [a-c\\x5D]{2} (item | "z")? # comment\n'
        'item ::= "[" [^0-9\\n"] "\\"" "\\\\" rule-name\n'
        'rule-name ::= "-"* | "\\t"\n'
    )
    pattern = 'Aé😀[a-c\\]]{2}(?:\\[[^0-9\\n"]"\\\\(?:-*|\\t)|z)?'
    texts = set()
    for seed in range(30):
        text = walk(compiler().compile(StructuredOutputs(grammar=gbnf)), t, at_random(seed, t))
        if text is not None:
            assert re.fullmatch(pattern, text), text
            texts.add(text)
    assert len(texts) > 10


def test_schemas_inside_a_grammar_are_compact_unless_they_ask_for_blanks() -> None:
    t = tokenizer()
    schema = '{"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]%s}'
    plain = 'start: "(" %json ' + schema % ', "additionalProperties": false' + ' ")"'
    assert walk(compiler().compile(StructuredOutputs(grammar=plain)), t, min) == '({"a":1})'
    option = (
        ', "additionalProperties": false, "x-guidance": {"whitespace_flexible": false, '
        '"key_separator": ": "}'
    )
    spaced = 'start: "(" %json ' + schema % option + ' ")"'
    assert walk(compiler().compile(StructuredOutputs(grammar=spaced)), t, min) == '({"a": 1})'


# ---- schemas ------------------------------------------------------------------------------------

#: All that SmolLM2's vocabulary can spell: it lacks the first bytes of characters further up.
characters = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])
leaves: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["null", "boolean"]).map(lambda kind: {"type": kind}),
    st.integers(-50, 50).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 9}),
    st.integers(0, 4).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 3}),
    st.lists(
        st.text(characters, max_size=5) | st.integers(-999, 999) | st.booleans() | st.none(),
        min_size=1, max_size=4, unique_by=lambda v: (type(v), v),
    ).map(lambda values: {"enum": values}),
    st.text(characters, max_size=6).map(lambda text: {"const": text}),
    st.sampled_from(["^[a-f]{2,4}$", "x\\d+y", "^(GET|PUT)$"]).map(
        lambda p: {"type": "string", "pattern": p, "maxLength": 12}
    ),
    st.sampled_from(["date", "ipv4", "uuid"]).map(lambda f: {"type": "string", "format": f}),
)  # fmt: skip
names = st.text(characters, min_size=1, max_size=6)


def branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def an_object(properties: dict[str, Any], drop: int) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[drop:],
            "additionalProperties": False,
        }

    return st.one_of(
        st.builds(an_object, st.dictionaries(names, inner, max_size=3), st.integers(0, 2)),
        st.builds(
            lambda item, n: {"type": "array", "items": item, "minItems": n, "maxItems": n + 2},
            inner,
            st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


schemas = st.recursive(leaves, branches, max_leaves=6)
_ended = {True: 0, False: 0}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas, st.integers(0, 10**6))
def test_whatever_a_walk_writes_validates(schema: dict[str, Any], seed: int) -> None:
    grammar = compiler().compile(StructuredOutputs(json=schema))
    text = walk(grammar, tokenizer(), at_random(seed, tokenizer()))
    _ended[text is not None] += 1
    if text is not None:
        value = json.loads(text)
        jsonschema.validate(value, schema)
        outside_strings = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
        assert not any(c.isspace() for c in outside_strings)


def test_most_walks_came_to_an_end() -> None:
    if sum(_ended.values()):
        assert _ended[True] > 0.9 * sum(_ended.values())


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"uniqueItems": True, "type": "array"}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "string", "format": "phone"}, "phone"),
        ({"type": "objekt"}, "objekt"),
        ({"dependentRequired": {"a": ["b"]}, "type": "object"}, "dependentRequired"),
        ({"$ref": "https://example.com/s.json"}, "example.com"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"properties": {"a": {"contains": {}}}}, "contains"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "x-guidance"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        (False, "no text fits"),
        ({"$ref": "#"}, "no token can come next"),
    ],
)
def test_what_a_schema_asks_in_vain_is_named(schema: Any, word: str) -> None:
    with pytest.raises(UsageError, match=r"^structured_outputs\.json ") as error:
        compiler().compile(StructuredOutputs(json=schema))
    assert word in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"regex": "a(b"}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "no grammar at all"}, "grammar"),
        ({"grammar": 'root ::= "a'}, "no GBNF"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"grammar": 'root ::= "\\uD800"'}, "no character"),
        ({"grammar": "start: " + "(" * 5000}, "deep"),
        ({"grammar": 'root ::= ' + "(" * 5000 + '"a"'}, "GBNF"),
        ({"grammar": 'start: %json {"uniqueItems": true}'}, "uniqueItems"),
        ({"grammar": "start: %json {oops}"}, "no JSON"),
        ({"grammar": 'start: a\na[temperature=0.5]: /[a-z]*/'}, "temperature"),
        ({"grammar": "start: <|no_such_token|>"}, "no_such_token"),
    ],
)  # fmt: skip
def test_what_is_no_grammar_is_named(given: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=r"^structured_outputs\.(regex|grammar) ?") as error:
        compiler().compile(StructuredOutputs(**given))
    assert word in str(error.value)


# ---- hostile input, threads ---------------------------------------------------------------------


def test_hostile_grammars_cost_little_and_kill_nothing() -> None:
    """In a process of its own: the verdict on each, and the memory of all of them together."""
    path = f"{SOURCE}:{Path(__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "hostile.py")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert len(report["verdicts"]) > 25
    for name, verdict in report["verdicts"].items():
        wanted = report["wanted"][name]
        assert verdict.startswith(wanted), f"{name}: {verdict}"
    assert report["peak_mb"] < 1500


def test_threads_compile_and_walk_side_by_side() -> None:
    fresh = GrammarCompiler(tokenizer())
    specs = [StructuredOutputs(regex=f"[a-{'cdef'[i % 4]}]{{2,9}}{i}") for i in range(12)]
    want = [walk(compiler().compile(s), tokenizer(), at_random(5, tokenizer())) for s in specs]
    got: dict[tuple[int, int], str | None] = {}

    def work(worker: int) -> None:
        for i, spec in enumerate(specs):
            choose = at_random(5, tokenizer())
            got[worker, i] = walk(fresh.compile(spec), tokenizer(), choose)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 48
    assert all(text == want[i] for (_, i), text in got.items())


def test_without_the_library_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['llguidance'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from headrace import LLM, SamplingParams, StructuredOutputs\n"
        "llm = LLM('smollm2-135m', max_model_len=64)\n"
        "assert llm.generate('Hi', SamplingParams(max_tokens=2))[0].finished\n"
        "p = SamplingParams(structured_outputs=StructuredOutputs(json_object=True))\n"
        "try: llm.generate('Hi', p)\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SOURCE)], capture_output=True, text=True, check=False
    )
    assert "UsageError Structured output needs llguidance: pip install" in done.stdout, done.stderr


def test_commands_start_without_the_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import headrace.engine.llm, headrace.cli.main, headrace.structured.compiler\n"
        "assert 'llguidance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(SOURCE)], check=True)
