"""Benchmark of a stall: eight streams run while a long prompt is computed.

    python tools/bench_prefill_stall.py [--tokens 512,4096] [--runs 5] [--json] [--check]

For each step budget (`--max-num-batched-tokens`), against a real server process:

    itl       gaps between the tokens of the streams while the prompt is computed
    predicted the cost interpreter's bound of those very steps (a chunk of the prompt and eight
              tokens), times the factor by which steps of this kind are slower than their bound on
              this machine; the factor comes from an earlier run of the same steps through the
              engine alone, without a server
    ratio     95th percentile of the gaps ÷ 95th percentile of the predictions; at most 2 is asked

A budget that holds the whole prompt is what happens without chunking: one gap as long as the prompt
takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.engine.account import StepAccount, StepRecord
from headrace.engine.config import EngineOptions
from headrace.engine.model import build_engine, open_model
from headrace.engine.params import SamplingParams
from headrace.limits.step_limits import limits_of

ROOT = Path(__file__).parents[1]
NUM_STREAMS = 8
MAX_RATIO = 2.0
CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Result:
    """One step budget. Times in ms, over all runs. factor: time ÷ bound of such steps."""

    max_num_batched_tokens: int
    num_gaps: int
    itl_p50_ms: float
    itl_p95_ms: float
    itl_max_ms: float
    factor: float
    predicted_p95_ms: float
    ratio: float
    prompt_ms: float


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def random_prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100, 40_000) for _ in range(length)]


# ---- prediction ---------------------------------------------------------------------------------


def mixed_steps(model_name: str, budget: int, prompt: int) -> list[StepRecord]:
    """Records of the steps that compute a chunk of the prompt beside eight running sequences,
    through the engine alone."""
    model = open_model(model_name, offline=True)
    options = EngineOptions(max_model_len=CONTEXT, max_num_batched_tokens=budget)
    engine = build_engine(model, options)
    records: list[StepRecord] = []
    engine.account = StepAccount(limits_of(model, engine.config), records.append)
    long = SamplingParams(max_tokens=1000, ignore_eos=True, seed=0)
    for number in range(NUM_STREAMS):
        engine.add(random_prompt(32, number), long)
    for _ in range(30):
        engine.step()
    last = engine.add(random_prompt(prompt, 99), SamplingParams(max_tokens=1, seed=0))
    records.clear()
    while not last.finished:
        engine.step()
    return [r for r in records if r.num_prefill_tokens and r.num_decode_tokens == NUM_STREAMS]


def predict(model_name: str, budget: int, prompt: int) -> tuple[float, list[float]]:
    """The factor of this machine, and the predicted seconds of each step."""
    found = mixed_steps(model_name, budget, prompt)
    bounds = [r.limit.bound_s for r in found if r.limit is not None]
    factor = sum(r.step_s for r in found) / sum(bounds)
    return factor, [factor * bound for bound in bounds]


# ---- the server ---------------------------------------------------------------------------------


class Stream:
    """One request whose events are timed as they come."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self._port = port
        self._body = json.dumps({**body, "stream": True, "ignore_eos": True}).encode()
        self.times: list[float] = []

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(self._body)}\r\n\r\n".encode() + self._body)
        async for line in reader:
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
            elif line.startswith(b"data: [DONE]"):
                break
        writer.close()


async def one_run(port: int, prompt: int, seed: int) -> tuple[list[float], float]:
    """Gaps of the streams while the prompt is computed, and how long that took, seconds."""
    streams = [
        Stream(port, {"prompt": random_prompt(32, seed * 100 + n), "max_tokens": 4000})
        for n in range(NUM_STREAMS)
    ]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    while any(len(stream.times) < 20 for stream in streams):
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await Stream(port, {"prompt": random_prompt(prompt, seed), "max_tokens": 1}).run()
    ended = time.monotonic()
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gaps = [
        after - before
        for stream in streams
        for before, after in zip(stream.times, stream.times[1:], strict=False)
        if before >= began - 0.001 and after <= ended + 0.02
    ]
    return gaps, ended - began


def measure(model: str, budget: int, prompt: int, runs: int) -> tuple[list[float], list[float]]:
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [
                sys.executable, "-m", "headrace.cli.main", "serve", model, "--port", "0",
                "--max-model-len", str(CONTEXT), "--max-num-batched-tokens", str(budget),
                "--offline",
            ],
            stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        try:
            port = wait_for_port(server, log.fileno())
            gaps: list[float] = []
            times: list[float] = []
            for run in range(runs):
                found, took = asyncio.run(one_run(port, prompt, run + 1))
                gaps += found
                times.append(took)
            return gaps, times
        finally:
            server.terminate()
            server.wait(30)


def wait_for_port(server: subprocess.Popen[bytes], log: int) -> int:
    while server.poll() is None:
        text = os.pread(log, 1 << 20, 0).decode()
        found = re.search(r"listening url=http://\S+:(\d+)", text)
        if found and "is ready" in text:
            return int(found[1])
        time.sleep(0.02)
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", default="512,4096", help="step budgets to compare")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail when the first budget misses, or larger ones do no worse",
    )
    args = parser.parse_args()
    results = []
    for budget in map(int, args.tokens.split(",")):
        factor, predicted = predict(args.model, budget, args.prompt)
        gaps, times = measure(args.model, budget, args.prompt, args.runs)
        p95, expected = quantile(gaps, 0.95), quantile(predicted, 0.95)
        results.append(
            Result(
                max_num_batched_tokens=budget,
                num_gaps=len(gaps),
                itl_p50_ms=round(quantile(gaps, 0.5) * 1e3, 2),
                itl_p95_ms=round(p95 * 1e3, 2),
                itl_max_ms=round(max(gaps) * 1e3, 2),
                factor=round(factor, 3),
                predicted_p95_ms=round(expected * 1e3, 2),
                ratio=round(p95 / expected, 3),
                prompt_ms=round(quantile(times, 0.5) * 1e3, 1),
            )
        )
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        for result in results:
            print("  ".join(f"{name}={value}" for name, value in asdict(result).items()))
    if args.check:
        check(results)


def check(results: list[Result]) -> None:
    """The first budget keeps its limit; whoever computes more of the prompt at once is worse."""
    first, *others = results
    if first.ratio > MAX_RATIO:
        raise SystemExit(f"the gaps are {first.ratio} times the prediction, not {MAX_RATIO}")
    for other in others:
        larger = other.max_num_batched_tokens > first.max_num_batched_tokens
        if larger and other.itl_p95_ms <= first.itl_p95_ms:
            raise SystemExit(
                f"a budget of {other.max_num_batched_tokens} has no longer gaps than one of "
                f"{first.max_num_batched_tokens}: chunks buy nothing here"
            )


if __name__ == "__main__":
    main()
