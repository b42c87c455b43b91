"""From StructuredOutputs to the one text that llguidance compiles. No tokenizer, no matcher.

JSON leaves no choice of blanks: a model that likes them would write blanks for ever. A Lark grammar
gets the same rule for the schemas inside it (`%json {…}`), unless they bring `x-guidance` of their
own.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.structured import limits
from headrace.structured.spec import StructuredOutputs

if TYPE_CHECKING:
    from headrace.formats.tokenizer import Tokenizer

#: Whatever a schema says of them. lenient would pass over keywords that are not implemented.
_JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
}
_SCHEMA = re.compile(r"%json\s*(?=\{)")
_TEMPERATURE = re.compile(r"\w\[[^\]\n]*\btemperature\s*=")
_RULE = re.compile(r"(?m)^[ \t]*[?!]?\w[\w-]*[ \t]*(\[[^\n]*?\][ \t]*)?(:|::=)")


def grammar_text(spec: StructuredOutputs) -> str:
    """The grammar in llguidance's own form. Raises UsageError for what is too large or no grammar;
    what it means is checked when it is compiled."""
    if spec.json_object:
        return _from_schema({"type": "object"})
    if spec.json is not None:
        assert isinstance(spec.json, str)
        limits.check_size("json", spec.json, limits.MAX_SCHEMA_BYTES)
        return _from_schema(json.loads(spec.json))
    if spec.regex is not None:
        limits.check_size("regex", spec.regex, limits.MAX_REGEX_BYTES)
        return str(_library().grammar_from_regex(spec.regex))
    if spec.choice is not None:
        for text in spec.choice:
            limits.check_size("choice (one of them)", text, limits.MAX_LITERAL_BYTES)
        words = " | ".join(lark_string(text) for text in spec.choice)
        limits.check_size("choice", words, limits.MAX_CHOICE_BYTES)
        return str(_library().grammar_from_lark(f"start: CHOICE\nCHOICE: {words}\n"))
    assert spec.grammar is not None
    return _from_grammar(spec.grammar)


def lark_string(text: str) -> str:
    """A Lark literal of exactly this text."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f]", lambda c: f"\\u{ord(c[0]):04x}", quoted)


def lark_token(tokenizer: Tokenizer, text: str) -> str:
    """A Lark item for a marker such as `<tool_call>`: the one token where the vocabulary has one,
    control or not, else the text."""
    ids = tokenizer.encode(text, add_special=False)
    return f"<[{ids[0]}]>" if len(ids) == 1 else lark_string(text)


def _library() -> Any:
    from llguidance import LLMatcher  # on first use

    return LLMatcher


def _from_schema(schema: Any) -> str:
    if schema is False:
        raise UsageError("structured_outputs.json is false: no text fits that schema.")
    if schema is True:
        schema = {}
    if "x-guidance" in schema:
        raise UsageError("structured_outputs.json holds x-guidance options, which are not taken.")
    limits.check_schema(schema, "json")
    text = json.dumps(schema)
    return str(_library().grammar_from_json_schema(text, overrides=_JSON_OPTIONS))


def _from_grammar(text: str) -> str:
    limits.check_size("grammar", text, limits.MAX_GRAMMAR_BYTES)
    if _TEMPERATURE.search(text):
        raise UsageError(
            "structured_outputs.grammar sets a temperature, which only the request's own can do."
        )
    if len(_RULE.findall(text)) > limits.MAX_RULES:
        raise UsageError(f"structured_outputs.grammar has more than {limits.MAX_RULES:,} rules.")
    return str(_library().grammar_from_lark(_compact_schemas(_to_lark(text))))


def _to_lark(text: str) -> str:
    """GBNF is recognised by its `::=` and a `root`; everything else is taken for Lark."""
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    if is_lark_syntax(text) or "::=" not in text:
        return text
    try:
        return gbnf_to_lark(_spell_out(text))
    except (Exception, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"structured_outputs.grammar is no GBNF grammar: {reason}.") from None


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)


def _spell_out(gbnf: str) -> str:
    """Numeric escapes become the characters they stand for: the converter loses leading zeros."""

    def character(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits is None:
            return match[0]
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise UsageError(f"structured_outputs.grammar holds {match[0]}, which is no character.")
        return match[0] if code < 0x20 or chr(code) in '"\\[]^-/' else chr(code)

    return _ESCAPE.sub(character, gbnf)


def _compact_schemas(lark: str) -> str:
    """Checks the schemas inside a Lark grammar, and the length of every line outside them."""
    pieces, outside, start = [], [], 0
    decoder = json.JSONDecoder()
    for match in _SCHEMA.finditer(lark):
        if match.start() < start:
            continue  # inside the schema before
        try:
            schema, end = decoder.raw_decode(lark, match.end())
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"structured_outputs.grammar: what follows %json is no JSON: {str(error)[:200]}."
            ) from None
        limits.check_schema(schema, "grammar")
        schema.setdefault("x-guidance", _JSON_OPTIONS)
        outside.append(lark[start : match.end()])
        pieces += [outside[-1], json.dumps(schema)]
        start = end
    outside.append(lark[start:])
    pieces.append(lark[start:])
    if max(map(len, "".join(outside).splitlines()), default=0) > limits.MAX_LINE_BYTES:
        raise UsageError(
            f"structured_outputs.grammar has a line of more than {limits.MAX_LINE_BYTES:,} "
            f"characters."
        )
    return "".join(pieces)
