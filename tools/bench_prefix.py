"""Benchmark of the prefix tree: what not computing twice is worth.

    python tools/bench_prefix.py [--model M] [--runs 5] [--part chat,shared] [--json] [--check]

chat    a conversation of ten turns that begins with a history of 1,500 tokens; each turn adds a
        question of 40 tokens and an answer of 32. Median time to first token of turns 2 to 10, with
        the tree and without: at most 15 % is asked.
shared  64 requests that share a system prompt of 1,000 tokens, 50 tokens of their own each, 32
        tokens out, all there at once: total time with the tree at most 25 % of without.

Both engines are in one process on 2 threads (--threads), run in turns, and start every run with an
empty tree; their tokens must be equal. The limit: time of the positions that the tree cannot save,
at the speed of the engine without it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, build_engine, open_model
from headrace.engine.params import SamplingParams

AIMS = {"chat": 0.15, "shared": 0.25}
HISTORY, TURNS, QUESTION, ANSWER = 1500, 10, 40, 32
NUM_REQUESTS, SYSTEM, UNIQUE, OUTPUT = 64, 1000, 50, 32


@dataclass(frozen=True, slots=True)
class Result:
    """Medians in ms. cached_share: of the prompt tokens with the tree. least: share of the time
    without the tree that is left when only what is new is computed at the same speed (of prefill;
    answers come on top in `shared`)."""

    part: str
    with_ms: float
    without_ms: float
    ratio: float
    aim: float
    cached_share: float
    least: float


@dataclass(slots=True)
class Run:
    """seconds: of the whole part, or one for every turn. tokens: all that were drawn."""

    seconds: list[float]
    tokens: list[list[int]]
    num_prompt: int
    num_cached: int


def ids(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100, 40_000) for _ in range(count)]


def chat(engine: Engine, seed: int) -> Run:
    """Turns 2 … of one conversation; the first one computes the history either way."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    history = ids(seed, HISTORY)
    run = Run([], [], 0, 0)
    for turn in range(TURNS):
        history += ids(1000 * seed + turn, QUESTION)
        began = time.perf_counter()
        request = engine.add(list(history), params)
        drawn = request.generations[0].token_ids
        while not drawn:
            engine.step()
        seconds = time.perf_counter() - began
        while engine.has_work:
            engine.step()
        history += drawn
        run.tokens.append(list(drawn))
        if turn:
            run.seconds.append(seconds)
            run.num_prompt += len(request.prompt_token_ids)
            run.num_cached += request.num_cached_tokens
    return run


def shared(engine: Engine, seed: int) -> Run:
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    system = ids(seed, SYSTEM)
    began = time.perf_counter()
    requests = [
        engine.add(system + ids(1000 * seed + n, UNIQUE), params) for n in range(NUM_REQUESTS)
    ]
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - began
    return Run(
        [seconds],
        [list(r.generations[0].token_ids) for r in requests],
        sum(len(r.prompt_token_ids) for r in requests),
        sum(r.num_cached_tokens for r in requests),
    )


PARTS = {"chat": chat, "shared": shared}


def engines(model: OpenModel, threads: int) -> tuple[Engine, Engine]:
    """With the tree, without."""
    pair = []
    for caching in (True, False):
        options = EngineOptions(
            max_model_len=4096, num_threads=threads, enable_prefix_caching=caching
        )
        pair.append(build_engine(model, options))
    return pair[0], pair[1]


def measure(part: str, pair: tuple[Engine, Engine], runs: int) -> Result:
    times: tuple[list[float], list[float]] = ([], [])
    last: list[Run] = []
    for number in range(runs):
        last = []
        for engine, seconds in zip(pair, times, strict=True):
            engine.cache.clear()
            run = PARTS[part](engine, number + 1)
            seconds += run.seconds
            last.append(run)
        if last[0].tokens != last[1].tokens:
            raise SystemExit(f"{part}: the tree changed the tokens")
    with_s, without_s = (statistics.median(seconds) for seconds in times)
    share = last[0].num_cached / last[0].num_prompt
    ratio = with_s / without_s
    return Result(part, with_s * 1e3, without_s * 1e3, ratio, AIMS[part], share, 1 - share)


def show(results: Sequence[Result]) -> None:
    print(f"{'':8}{'with':>10}{'without':>10}{'ratio':>8}{'aim':>6}{'cached':>8}{'least':>7}")
    for r in results:
        print(
            f"{r.part:8}{r.with_ms:>8.1f}ms{r.without_ms:>8.1f}ms{r.ratio:>8.1%}{r.aim:>6.0%}"
            f"{r.cached_share:>8.1%}{r.least:>7.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--part", default="chat,shared")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail when an aim is missed")
    args = parser.parse_args()
    parts = args.part.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; known are {', '.join(PARTS)}")
    model = open_model(args.model, offline=True)
    pair = engines(model, args.threads)
    results = [measure(part, pair, args.runs) for part in parts]
    conditions = {
        "model": args.model, "threads": args.threads, "runs": args.runs, "kv": "bf16",
        "isa": getattr(pair[0].executor, "isa", None), "tokens": "equal with and without",
    }  # fmt: skip
    if args.json:
        print(json.dumps({"conditions": conditions, "results": [asdict(r) for r in results]}))
    else:
        print(conditions)
        show(results)
    if args.check and any(r.ratio > r.aim for r in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
