"""Benchmark of speculation: what guessing ahead gains, and what it costs where it is in vain.

    python tools/bench_speculation.py [PART…] [--runs N] [--into FILE] [--check] [--json]

    edit          a file of 326 lines is written again with one name changed: n-gram against plain
    draft         a small model drafts for a large one on code: plain, γ = 1 … 5, automatic; c and
                  v(γ+1) measured beside it; the formula's prediction next to what was measured
    random        random text, where guessing is in vain: n-gram, automatic against plain
    random-small  the same with a small model, whose steps are short
    random-draft  the same with the draft model
    lookup        n-gram lookup alone: entering a prompt, a proposal where nothing repeats, one of
                  15 tokens in a copy; without a model

What is compared takes turns within a run, and results are medians over runs; one run of a part
takes about a minute, of draft (one of four prompts) 20 s. --into FILE adds the runs to those that
the file holds, so that a measurement can be spread over quiet moments; with no part named, the file
is only summed up. --check fails when an aim does not hold. Every run also checks that the text is
that of plain decoding.

The workloads were fixed before they were first run and belong to no tuning.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import queue
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_verify_cost import Steps

from headrace import LLM, SamplingParams
from headrace.bench.cases import prompt_ids
from headrace.bench.host import cpu_name, git_commit
from headrace.engine.model import open_model
from headrace.engine.outputs import RequestOutput
from headrace.engine.speculation.copying import CopyTracker
from headrace.engine.speculation.ngram_index import NgramIndex
from headrace.native import _core

#: The file to be rewritten: a module of Python 3.11's library. Another Python has another text.
SOURCE = Path(queue.__file__)
SOURCE_SHA256 = "f6c37fc37cd7440979f7d22d40ee818fa3b714c573610c08fa52911d541193f0"
EDIT = """\
Rename the attribute `mutex` to `gate` everywhere in this Python file. Print the whole file, and \
change nothing else.

```python
{source}```"""
EDIT_TOKENS = 1200

CODE = (
    "Write a Python class `IntervalSet` that keeps disjoint half-open intervals, with methods to "
    "add, remove and test membership. Include docstrings.",
    "Write a Python function that parses a CSV line with quoted fields, without the csv module, "
    "and unit tests for it.",
    "Write a C function that reverses a singly linked list in place, and a main program that "
    "tests it.",
    "Write a SQL schema for a small library: books, members and loans, with constraints, and three "
    "example queries.",
)
CODE_TOKENS = 96
WARM_UP = "Write a Python class for a bounded queue, and unit tests for it."
GAMMAS = (1, 2, 3, 4, 5)

#: Requests of a run, ids of each prompt, tokens drawn behind them, at what temperature.
RANDOM_PROMPTS, RANDOM_LENGTH, RANDOM_TOKENS, RANDOM_TEMPERATURE = 4, 64, 192, 1.5
LOOKUP_TOKENS = 8000
COST_CONTEXT = 256  # positions behind which c and v are measured
COST_REPETITIONS = 5

#: Result → (largest or smallest allowed).
LIMITS: dict[str, tuple[str, float]] = {
    "edit_gain": ("≥", 2.5),
    "edit_tokens": ("≥", 1000),
    "draft_measured_of_predicted": ("≥", 0.9),
    "draft_auto_of_best": ("≥", 0.97),
    "random_auto_of_plain": ("≥", 0.97),
    "random-small_auto_of_plain": ("≥", 0.97),
    "random-draft_auto_of_plain": ("≥", 0.97),
    "lookup_enter_ms": ("≤", 2),
    "texts_that_differ": ("≤", 0),
}

#: Name → one number per run.
Samples = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Options:
    model: str
    draft: str
    small: str
    threads: int
    first: int


# ---- one run of each part -----------------------------------------------------------------------


def edit(options: Options) -> Iterator[Samples]:
    """Plain and n-gram decoding of the edit, in turns."""
    llm = _llm(options.model, options)
    prompt = EDIT.format(source=SOURCE.read_text())
    params = SamplingParams(temperature=0, max_tokens=EDIT_TOKENS)
    while True:
        plain = _chat(llm, prompt, params.replace(speculative="off"))
        guessed = _chat(llm, prompt, params.replace(speculative="ngram"))
        account = guessed.metrics.speculation
        assert account is not None
        yield {
            "edit_tokens": [len(plain.outputs[0].token_ids)],
            "edit_prompt_tokens": [len(plain.prompt_token_ids)],
            "edit_plain_tok_per_s": [_rate(plain)],
            "edit_ngram_tok_per_s": [_rate(guessed)],
            "edit_gain": [_rate(guessed) / _rate(plain)],
            "edit_tested": [account.num_tested],
            "edit_accepted": [account.num_accepted],
            "edit_rounds": [account.num_rounds],
            "edit_predicted_gain": [account.predicted_gain or 0.0],
            "edit_measured_gain": [account.measured_gain or 0.0],
            "texts_that_differ": [_differ(plain, guessed)],
        }


def draft(options: Options) -> Iterator[Samples]:
    """Plain, fixed and automatic drafting on every prompt, in turns; c and v between them."""
    llm = _llm(options.model, options, draft_model=options.draft)
    costs = _Costs(options, llm.engine.executor.pool)
    params = SamplingParams(temperature=0, max_tokens=CODE_TOKENS, ignore_eos=True)
    ways: dict[str, dict[str, Any]] = {"plain": {"speculative": "off"}}
    ways |= {f"γ{n}": {"speculative": "draft", "num_draft_tokens": n} for n in GAMMAS}
    ways["auto"] = {"speculative": "draft"}
    _chat(llm, WARM_UP, params.replace(max_tokens=16, **ways["plain"]))
    _chat(llm, WARM_UP, params.replace(**ways["auto"]))  # the controller has seen one request
    for number in itertools.count(options.first):
        index = number % len(CODE)
        found: Samples = {"texts_that_differ": [0]}
        plain = None
        order = list(ways)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            output = _chat(llm, CODE[index], params.replace(**ways[name]))
            found[f"draft_{name}_s@{index}"] = [output.metrics.decode_s or 0.0]
            plain = output if plain is None else plain
            found["texts_that_differ"][0] += _differ(plain, output)
            account = output.metrics.speculation
            if account is not None:
                for what in ("tested", "accepted", "rounds", "drafted"):
                    found[f"draft_{name}_{what}"] = [getattr(account, f"num_{what}")]
        yield found | costs.measure()


class _Costs:
    """c and v(γ+1), measured on the two models alone."""

    def __init__(self, options: Options, pool: _core.Pool | None) -> None:
        most = max(GAMMAS) + 1
        self._target, self._draft = (
            Steps(open_model(name, offline=True), COST_CONTEXT, 1, most, options.threads, pool)
            for name in (options.model, options.draft)
        )
        self._counts = range(1, most + 1)

    def measure(self) -> Samples:
        """Ratios, each of steps that ran one after the other."""
        found: Samples = {}
        for _ in range(COST_REPETITIONS):
            _time(self._draft, 1)  # the first step behind the other model's is not like the rest
            drafting = _time(self._draft, 1)
            _time(self._target, 1)
            times = {n: _time(self._target, n) for n in self._counts}
            found.setdefault("draft_c", []).append(drafting / times[1])
            found.setdefault("draft_plain_step_ms", []).append(1e3 * times[1])
            for n in self._counts[1:]:
                found.setdefault(f"draft_v{n}", []).append(times[n] / times[1])
        return found


def random_text(options: Options) -> Iterator[Samples]:
    """Automatic n-gram decoding of random text against plain."""
    return _random("random", options.model, "ngram", options)


def random_small(options: Options) -> Iterator[Samples]:
    """The same with the small model."""
    return _random("random-small", options.small, "ngram", options)


def random_draft(options: Options) -> Iterator[Samples]:
    """Automatic drafting by a model of random text against plain."""
    return _random("random-draft", options.model, "draft", options)


def _random(part: str, model: str, speculative: str, options: Options) -> Iterator[Samples]:
    more = {"draft_model": options.draft} if speculative == "draft" else {}
    llm = _llm(model, options, **more)
    sampled = SamplingParams(temperature=RANDOM_TEMPERATURE, max_tokens=8, ignore_eos=True)
    for mode in ("off", speculative):  # whatever happens once
        llm.generate([_random_prompt(llm, -1)], sampled.replace(speculative=mode))
    for number in itertools.count():
        seconds = [0.0, 0.0]
        found: Samples = {"texts_that_differ": [0]}
        for seed in range(RANDOM_PROMPTS):
            params = sampled.replace(seed=seed, max_tokens=RANDOM_TOKENS)
            outputs: dict[int, RequestOutput] = {}
            for way in (0, 1) if (number + seed) % 2 else (1, 0):
                chosen = params.replace(speculative=speculative if way else "off")
                outputs[way] = llm.generate([_random_prompt(llm, seed)], chosen)[0]
                seconds[way] += _total_s(outputs[way])
            found["texts_that_differ"][0] += _differ(outputs[0], outputs[1])
            account = outputs[1].metrics.speculation
            assert account is not None
            for what in ("tested", "accepted", "rounds", "drafted"):
                counted = getattr(account, f"num_{what}")
                found.setdefault(f"{part}_{what}", [0])[0] += counted
        found[f"{part}_plain_tok_per_s"] = [RANDOM_PROMPTS * RANDOM_TOKENS / seconds[0]]
        found[f"{part}_auto_of_plain"] = [seconds[0] / seconds[1]]
        yield found


def lookup(options: Options) -> Iterator[Samples]:
    """Microseconds of prompt lookup; its memory."""
    ids = prompt_ids(150_000, LOOKUP_TOKENS + 2000)
    while True:
        tracker, tokens = CopyTracker(), ids[:LOOKUP_TOKENS]
        began = time.perf_counter()
        tracker.propose(tokens, 15)
        entered = time.perf_counter() - began
        found: Samples = {"lookup_enter_ms": [1e3 * entered]}
        for name, following in (("miss", ids[LOOKUP_TOKENS:]), ("copy", ids[:2000])):
            times = []
            for token in following:
                tokens.append(token)
                began = time.perf_counter()
                tracker.propose(tokens, 15)
                times.append(time.perf_counter() - began)
            found[f"lookup_{name}_us"] = [1e6 * statistics.median(times)]
        index = NgramIndex(ids[:LOOKUP_TOKENS])
        found["lookup_bytes_per_token"] = [index.num_bytes / LOOKUP_TOKENS]
        yield found


def _random_prompt(llm: LLM, number: int) -> list[int]:
    return prompt_ids(llm.model.tokenizer.num_ids, RANDOM_LENGTH, number + 1)


PARTS: dict[str, Callable[[Options], Iterator[Samples]]] = {
    "edit": edit, "draft": draft, "random": random_text, "random-small": random_small,
    "random-draft": random_draft, "lookup": lookup,
}  # fmt: skip


def _llm(model: str, options: Options, **more: Any) -> LLM:
    return LLM(model, offline=True, num_threads=options.threads, kv_cache_memory="1GiB", **more)


def _chat(llm: LLM, prompt: str, params: SamplingParams) -> RequestOutput:
    return llm.chat([{"role": "user", "content": prompt}], params)[0]


def _rate(output: RequestOutput) -> float:
    """Tokens per second behind the first one."""
    seconds = output.metrics.decode_s
    assert seconds
    return (len(output.outputs[0].token_ids) - 1) / seconds


def _total_s(output: RequestOutput) -> float:
    seconds = output.metrics.total_s
    assert seconds
    return seconds


def _differ(one: RequestOutput, other: RequestOutput) -> int:
    return int(one.outputs[0].token_ids != other.outputs[0].token_ids)


def _time(steps: Steps, rows: int) -> float:
    batch = steps.verification(rows)
    began = time.perf_counter()
    steps.native.run(batch)
    return time.perf_counter() - began


# ---- what the runs say --------------------------------------------------------------------------


def results(samples: Samples) -> dict[str, float]:
    """Medians over runs, sums of counts, and what follows from them."""
    found: dict[str, float] = {}
    for name, values in samples.items():
        counted = name.endswith(("_tested", "_accepted", "_rounds", "_drafted", "_differ"))
        found[name] = sum(values) if counted else statistics.median(values)
    for part in (
        "edit",
        "random",
        "random-small",
        "random-draft",
        *(f"draft_γ{n}" for n in GAMMAS),
    ):
        if found.get(f"{part}_tested"):
            found[f"{part}_alpha"] = found[f"{part}_accepted"] / found[f"{part}_tested"]
    for name in ("plain", *(f"γ{n}" for n in GAMMAS), "auto"):
        keys = [f"draft_{name}_s@{index}" for index in range(len(CODE))]
        if all(key in found for key in keys):
            seconds = sum(found[key] for key in keys)
            found[f"draft_{name}_tok_per_s"] = len(CODE) * (CODE_TOKENS - 1) / seconds
    if "draft_plain_tok_per_s" in found:
        found |= _predictions(found)
    return found


def _predictions(found: dict[str, float]) -> dict[str, float]:
    """(1 − α^(γ+1)) / ((1 − α)(γ·c + v(γ+1))) next to what was measured."""
    more: dict[str, float] = {}
    plain = found["draft_plain_tok_per_s"]
    for n in GAMMAS:
        alpha = found[f"draft_γ{n}_alpha"]
        tokens = sum(alpha**k for k in range(n + 1))
        more[f"draft_γ{n}_predicted"] = tokens / (n * found["draft_c"] + found[f"draft_v{n + 1}"])
        more[f"draft_γ{n}_measured"] = found[f"draft_γ{n}_tok_per_s"] / plain
    best = max(GAMMAS, key=lambda n: more[f"draft_γ{n}_measured"])
    more["draft_best_γ"] = best
    more["draft_measured_of_predicted"] = min(
        more[f"draft_γ{n}_measured"] / more[f"draft_γ{n}_predicted"] for n in GAMMAS
    )
    more["draft_auto_measured"] = found["draft_auto_tok_per_s"] / plain
    # None may be best of all: then that is what the automatic choice has to reach.
    best_rate = max(plain, found[f"draft_γ{best}_tok_per_s"])
    more["draft_auto_of_best"] = found["draft_auto_tok_per_s"] / best_rate
    return more


def broken(result: dict[str, float]) -> list[str]:
    """What does not keep its limit, one sentence each."""
    found = []
    for name, (sign, limit) in LIMITS.items():
        value = result.get(name)
        if value is not None and (value > limit if sign == "≤" else value < limit):
            found.append(f"{name} = {value:.3g}, must be {sign} {limit:g}")
    return found


def conditions(options: Options) -> dict[str, str]:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    return {
        "model": options.model, "draft": options.draft, "small": options.small,
        "threads": str(options.threads), "cpu": cpu_name(), "commit": git_commit() or "",
        "python": sys.version.split()[0],
        "edited file": f"{SOURCE.name}, sha256 {digest[:12]}"
        + ("" if digest == SOURCE_SHA256 else ", not that of Python 3.11"),
        "time": "decoding only (edit, draft), whole requests (random); model loaded, warmed up, "
        "in draft with one automatic request of another prompt",
    }  # fmt: skip


def _line(name: str, value: float, runs: int) -> str:
    limit = LIMITS.get(name)
    must = "" if limit is None else f"   {limit[0]} {limit[1]:g}"
    return f"{name:34} {value:10.4g}   {runs or '':>3}{must}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b", help="drafts for the model")
    parser.add_argument("--small", default="smollm2-135m", help="of random-small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1, help="of each part")
    parser.add_argument("--first", type=int, default=0, help="prompt of the first run of draft")
    parser.add_argument("--into", type=Path, help="adds the runs to this file's")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim does not hold")
    given = parser.parse_args()
    unknown = sorted(set(given.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    options = Options(given.model, given.draft, given.small, given.threads, given.first)
    samples: Samples = {}
    if given.into is not None and given.into.exists():
        samples = json.loads(given.into.read_text())["samples"]
    parts = given.parts or ([] if samples else list(PARTS))
    stated = conditions(options)
    for part in parts:
        runs = PARTS[part](options)
        for _ in range(given.runs):
            for name, values in next(runs).items():
                samples.setdefault(name, []).extend(values)
            if given.into is not None:
                given.into.write_text(json.dumps({"conditions": stated, "samples": samples}))
    result = results(samples)
    if given.json:
        print(json.dumps({"conditions": stated, "results": result}, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in stated.items()), end="\n\n")
        for name, value in result.items():
            print(_line(name, value, len(samples.get(name, ()))))
    problems = broken(result) if given.check else []
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
