"""Benchmark of a step's Python: what one engine step costs besides the native calls.

    python tools/bench_steps.py [MODEL] [--batch 1,8,32,64] [--steps 120] [--json] [--check]

Drives `LLM.generate` on a real model with its real tokenizer, and splits the wall time of every
step that only decodes into parts. Native time (the step program, the sampler's arithmetic) is taken
out of the parts in which it happens. Kinds of request: greedy; seeded sampling with stop strings;
the same with 5 logprobs; greedy under a JSON schema (its masks are a column of
their own). Microseconds per step, medians; gap: what a step costs beyond its program, sampling and
masks included. --check: exit status 1 when the sum of the parts is above the aim at batch 1 (100
µs) or 32 (400 µs), for the requests with neither logprobs nor masks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace import LLM, SamplingParams, StructuredOutputs
from headrace.engine import sampler

AIMS_US = {1: 100.0, 32: 400.0}
#: In the order of a step. loop: LLM.generate outside Engine.step.
PARTS = ("schedule", "prepare", "run", "draw", "commit", "loop")
NATIVE = ("program", "sample", "mask")  # the step program; the sampler's arithmetic; masks
_SEEDED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "stop": ["<<<STOP>>>", "\n\n\n\n"]}
#: JSON that goes on for as long as it is asked for.
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_PEOPLE = {"type": "array", "items": _PERSON, "minItems": 10_000}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": _SEEDED,
    "logprobs": {**_SEEDED, "logprobs": 5},
    "schema": {"temperature": 0.0, "structured_outputs": StructuredOutputs(json=_PEOPLE)},
}


class Clock:
    """Notes when parts begin and end, with as little Python of its own as can be; `steps` makes
    seconds of it."""

    def __init__(self) -> None:
        self._notes: list[tuple[str, float, float]] = []  # in order of their ends
        self._begins: list[float] = []

    def wrap(self, owner: object, name: str, part: str) -> None:
        """Replaces owner.name by a function that notes its time as `part`."""
        inner, note, now = getattr(owner, name), self._notes.append, time.perf_counter

        def timed(*args: Any) -> Any:
            begin = now()
            result = inner(*args)
            note((part, begin, now()))
            return result

        setattr(owner, name, timed)

    def steps(self) -> list[dict[str, float]]:
        """Seconds per part of every step but the last; nested parts are taken out of the outer
        one. A step ends with the note of Engine.step ("commit"); "loop" is the time to the next."""
        steps: list[dict[str, float]] = []
        own: list[tuple[str, float, float]] = []
        last_end = None
        for part, begin, end in self._notes:
            own.append((part, begin, end))
            if part != "commit":
                continue
            if last_end is not None:
                steps[-1]["loop"] = begin - last_end
            steps.append(_exclusive(own))
            own, last_end = [], end
        return steps[:-1]


def _exclusive(notes: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds of each part without the parts inside it."""
    seconds: dict[str, float] = {}
    for i, (part, begin, end) in enumerate(notes):
        inside = 0.0
        edge = end
        for _, other_begin, other_end in reversed(notes[:i]):  # the outermost ones only
            if other_begin >= begin and other_end <= edge:
                inside += other_end - other_begin
                edge = other_begin
        seconds[part] = seconds.get(part, 0.0) + end - begin - inside
    return seconds


class _Proxy:
    """A module's functions, one of them replaced."""

    def __init__(self, module: object) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def instrumented(llm: LLM) -> Iterator[Clock]:
    """Puts clocks into one LLM. What is left of Engine.step is "commit"."""
    clock = Clock()
    engine = llm.engine
    executor: Any = engine.executor
    draws: Any = sampler
    core = draws._core
    program, native = _Proxy(executor._program), _Proxy(core)
    clock.wrap(program, "run", "program")
    clock.wrap(native, "sample", "sample")
    timed = {
        (engine.scheduler, "schedule"): "schedule",
        (engine._preparer, "build"): "prepare",
        (executor, "run"): "run",
        (engine._drawing, "_draw_tokens"): "draw",
        (engine._drawing, "_masks"): "mask",
        (engine, "step"): "commit",
    }
    for (owner, name), part in timed.items():
        clock.wrap(owner, name, part)
    executor._program, draws._core = program, native
    try:
        yield clock
    finally:
        executor._program, draws._core = program._module, core
        for owner, name in timed:
            delattr(owner, name)


def measure(llm: LLM, batch: int, kind: str, num_steps: int) -> dict[str, float]:
    """Median microseconds per part over the steps in which all `batch` sequences decode."""
    words = llm.encode("The committee met in the old town hall to talk about the river and mills")
    prompts: list[Any] = [{"prompt_token_ids": words[: 8 + i % 8]} for i in range(batch)]
    params = [
        SamplingParams(max_tokens=num_steps, ignore_eos=True, seed=i, **KINDS[kind])
        for i in range(batch)
    ]
    with instrumented(llm) as clock:
        llm.generate(prompts, params)
    decodes = clock.steps()[2:]  # the first computes the prompts
    result = {
        part: statistics.median(step.get(part, 0.0) for step in decodes) * 1e6
        for part in (*PARTS, *NATIVE)
    }
    sums = [sum(step.get(part, 0.0) for part in PARTS) for step in decodes]
    result["sum"] = statistics.median(sums) * 1e6
    return result


def show(rows: list[dict[str, Any]]) -> None:
    head = ["kind", "batch", *PARTS, "sum", "aim", *NATIVE, "gap"]
    print("".join(f"{name:>10}" for name in head) + "   (µs per step)")
    for row in rows:
        figures = [f"{row[part]:.0f}" for part in (*PARTS, "sum")]
        aim = "-" if row["aim"] is None else f"{row['aim']:.0f}"
        native = [row[part] for part in NATIVE]
        beyond = row["sum"] + row["sample"] + row["mask"]
        gap = f"{100 * beyond / row['program']:.1f} %"
        cells = [
            row["kind"],
            str(row["batch"]),
            *figures,
            aim,
            *(f"{n:.0f}" for n in native),
            gap,
        ]
        print("".join(f"{cell:>10}" for cell in cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--batch", default="1,8,32,64")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    batches = [int(b) for b in args.batch.split(",")]
    llm = LLM(
        args.model,
        max_model_len=1024,
        max_num_seqs=max(batches),
        offline=True,
        enable_prefix_caching=False,
    )
    rows: list[dict[str, Any]] = []
    for kind in args.kinds.split(","):
        for batch in batches:
            figures = measure(llm, batch, kind, args.steps)
            aim = None if kind in ("logprobs", "schema") else AIMS_US.get(batch)
            rows.append({"kind": kind, "batch": batch, "aim": aim, **figures})
    if args.json:
        print(json.dumps({"model": args.model, "unit": "us", "rows": rows}, indent=1))
    else:
        show(rows)
    missed = [r for r in rows if r["aim"] is not None and r["sum"] > r["aim"]]
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
