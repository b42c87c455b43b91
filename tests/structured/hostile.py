"""Schemas and grammars made to hurt; prints a JSON report. A process of its own, so that a crash or
a swollen heap is seen. For each: compiled within a second or refused; then 40 steps at random."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headrace.engine.model import open_model
from headrace.errors import UsageError
from headrace.structured.compiler import GrammarCompiler
from headrace.structured.constraint import GrammarError
from headrace.structured.spec import StructuredOutputs
from structured.walks import allowed

# What is wanted of each: "ok" compiles and walks; "refused"; "ended": at run time, by a budget; a
# common beginning ("") where both would be right.
CASES: dict[str, tuple[str, dict[str, Any]]] = {}


def case(name: str, wanted: str, **given: Any) -> None:
    CASES[name] = (wanted, given)


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


def chain_of_references(length: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}},
            "required": ["x"],
        }
        for i in range(length)
    }
    return {"$defs": definitions | {f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def chain_of_rules(length: int, letter: str) -> str:
    rules = [f'{letter}{i}: "b" {letter}{i + 1} | "c"' for i in range(length)]
    return f"start: {letter}0\n" + "\n".join(rules) + f'\n{letter}{length}: "z"'


def doubling(times: int, first: str) -> str:
    rules = [f"A{i + 1}: A{i} A{i}" for i in range(times)]
    return f"start: A{times}\nA0: {first}\n" + "\n".join(rules)


def looking_at_itself(depth: int) -> dict[str, Any]:
    """A leaf that refers to every level above it: as long a way as the bounds allow."""
    schema: dict[str, Any] = {"anyOf": [{"$ref": "#" + "/items" * i} for i in range(depth)]}
    schema["anyOf"].append({"type": "null"})
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


case("nested 90", "ok", json=nested(90))
case("nested 300", "refused", json=nested(300))
case("references 1000", "ok", json=chain_of_references(1000))
case("references 1300", "ok", json=chain_of_references(1300))
case("references 3000", "refused", json=chain_of_references(3000))
case("looking at itself", "ok", json=looking_at_itself(80))
case("looking too often", "refused", json=looking_at_itself(95))
case("self", "refused", json={"$ref": "#"})
case("enum 9,000", "ok", json={"enum": [f"value{i}" for i in range(9000)]})
case("a megabyte", "refused", json={"type": "object", "description": "x" * 1_000_000})
case("a long constant", "refused", json={"const": "x" * 100_000})
case("a long name", "refused", json={"type": "object", "properties": {"x" * 100_000: {}}})
case("2,000 properties", "ok", json={"properties": {f"p{i}": {} for i in range(2000)}})
case(
    "a hundred million items",
    "ended",
    json={"type": "array", "items": {"const": 1}, "minItems": 10**8},
)
case("long strings", "ok", json={"type": "string", "minLength": 10**5, "maxLength": 10**6})
case(
    "exponential allOf",
    "refused",
    json={
        "allOf": [
            {"anyOf": [{"properties": {f"{x}{i}": {"type": "null"}}} for x in "ab"]}
            for i in range(20)
        ]
    },
)
case("a large automaton", "ok", regex="(a|b)*a(a|b){200}")
case("many automata", "ended", regex="(.*a.{50}b.*)|(.*c.{60}d)")
case("a billion a", "ended", regex="((a{1000}){1000}){1000}")
case("nested groups", "refused", regex="(" * 4000 + "a" + ")" * 4000)
case("options in a row", "refused", regex="(a|b)?" * 1300)
case("a long regex", "refused", regex="a" * 10_000)
case("rules 4,900", "ok", grammar=chain_of_rules(4900, "a"))
case("terminals 4,900", "ok", grammar=chain_of_rules(4900, "A"))
case("rules 6,000", "refused", grammar=chain_of_rules(6000, "a"))
case("doubled 16 times", "ended", grammar=doubling(16, '"x"'))
case("doubled 40 times", "refused", grammar=doubling(40, '"x"'))
case("doubled options", "refused", grammar=doubling(12, '"x"?'))
case("ambiguous", "", grammar='start: s\ns: s s | s s s | "a" | ""')
case("itself", "refused", grammar="start: start")
case(
    "too many symbols", "refused", grammar="start: a\na: " + ('"a"? ' * 1600 + "\n | ") * 15 + '"b"'
)
case("deep in a grammar", "refused", grammar="start: %json " + nested(2000))
case("12,000 choices", "ok", choice=[f"c{i}" for i in range(12_000)])
case("a long choice", "refused", choice=["x" * 100_000])


def verdict(compiler: GrammarCompiler, given: dict[str, Any], num_ids: int) -> str:
    began = time.thread_time()
    try:
        constraint = compiler.compile(StructuredOutputs(**given)).start()
    except UsageError as error:
        return f"refused: {str(error)[:400]}"
    rng = random.Random(1)
    try:
        for _ in range(40):
            constraint.accept(rng.choice(allowed(constraint, num_ids)))
            if constraint.finished:
                break
    except GrammarError as error:
        return f"ended: {error}"
    spent = time.thread_time() - began
    return f"ok in {spent:.2f} s"


def _peak_mb() -> int:
    """Of this program alone: what getrusage says includes the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def main() -> None:
    tokenizer = open_model("smollm2-135m").tokenizer
    compiler = GrammarCompiler(tokenizer)
    verdicts = {}
    for name, (_, given) in CASES.items():
        print(name, file=sys.stderr)
        verdicts[name] = verdict(compiler, given, tokenizer.num_ids)
    peak = _peak_mb()
    wanted = {name: wanted for name, (wanted, _) in CASES.items()}
    print(json.dumps({"verdicts": verdicts, "wanted": wanted, "peak_mb": peak}))


if __name__ == "__main__":
    # A small stack: walking must not need what compiling needs.
    threading.stack_size(512 * 1024)
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()
