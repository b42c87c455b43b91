"""What a schema or grammar may cost, checked before and while it is compiled.

Compiling recurses: along nesting and, once per distinct target, along references. The bounds here
keep its stack, time and memory small whatever the input says; docs/structured.md gives figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_SCHEMA_BYTES = 128 * 1024
MAX_GRAMMAR_BYTES = 128 * 1024
MAX_LINE_BYTES = 8 * 1024  # of a grammar, its schemas aside: bounds a regex
MAX_REGEX_BYTES = 8 * 1024
MAX_CHOICE_BYTES = 128 * 1024
MAX_LITERAL_BYTES = 8 * 1024  # of a text in a schema or choice: what is forced is read ahead
MAX_DEPTH = 100  # of nested values in a schema
MAX_PATH = 8_000  # (distinct references + 1) · depth: the longest way of the compiler
MAX_RULES = 5_000
#: Stack of the thread that compiles, bytes. MAX_PATH and MAX_RULES need about a third of it.
STACK_BYTES = 256 * 1024 * 1024


def parser_limits() -> LLParserLimits:
    """Budgets of one grammar: fuel of the lexer (about 50,000 per ms when it is built, 14,000 per
    ms in a step), items of a step (20,000 per ms), states of the lexer (1 to 2 KB each)."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def check_size(field: str, text: str, limit: int) -> None:
    """Raises UsageError when a text has more than `limit` bytes."""
    size = len(text.encode())
    if size > limit:
        raise UsageError(
            f"structured_outputs.{field} has {size:,} bytes; at most {limit:,} are taken."
        )


def check_schema(schema: Any, field: str) -> None:
    """Raises UsageError for a schema that is nested too deep or has too many references."""
    references: set[str] = set()
    depth = 0
    for level, value in _walk(schema):
        depth = max(depth, level)
        if level > MAX_DEPTH:
            raise UsageError(
                f"structured_outputs.{field} holds a schema nested deeper than {MAX_DEPTH} values."
            )
        if isinstance(value, str):
            check_size(f"{field} (a text in the schema)", value, MAX_LITERAL_BYTES)
        if isinstance(value, dict):
            _check_patterns(value, field)
            for name in value:
                check_size(f"{field} (a name in the schema)", name, MAX_LITERAL_BYTES)
            if isinstance(value.get("$ref"), str):
                references.add(value["$ref"])
    if (len(references) + 1) * depth > MAX_PATH:
        raise UsageError(
            f"structured_outputs.{field} holds a schema too large to follow: {len(references)} "
            f"different references, nested {depth} deep (their product may be {MAX_PATH:,})."
        )


def _check_patterns(value: dict[str, Any], field: str) -> None:
    pattern = value.get("pattern")
    named = value.get("patternProperties")
    patterns = [pattern] if isinstance(pattern, str) else []
    patterns += list(named) if isinstance(named, dict) else []
    for text in patterns:
        check_size(f"{field} (a pattern)", text, MAX_REGEX_BYTES)


def _walk(schema: Any) -> Iterator[tuple[int, Any]]:
    """Every value with its level, 0 first; without recursion."""
    stack = [(0, schema)]
    while stack:
        level, value = stack.pop()
        yield level, value
        if isinstance(value, dict):
            stack += [(level + 1, item) for item in value.values()]
        elif isinstance(value, list):
            stack += [(level + 1, item) for item in value]
