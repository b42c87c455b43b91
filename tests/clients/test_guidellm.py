"""guidellm, our own /metrics and `headrace bench serve` tell the same story of the same load.

The server computes with one thread, so that the client has a core of its own; the two load
generators take turns and ask for the same: equal prompt and output lengths, temperature 1, token
counts in every chunk. Figures agree within 10 % or 10 ms, whichever is larger:

- with four streams, what a client saw and what the server counted of the very same requests, for
  either client (two runs are not compared there: whether four prompts meet in one step differs from
  run to run, whoever sends them);
- with one stream, where runs are alike, the two clients with each other, too.

Of several rounds the least disturbed one counts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import HEADRACE_PYTHON, MODEL
from live_server import ROOT, LiveServer, serving

REQUESTS, OUTPUT_TOKENS = 24, 96
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over the requests of one run. prompt_tokens: per request."""

    ttft_ms: float
    itl_ms: float
    tokens_per_s: float
    prompt_tokens: float


@pytest.fixture(scope="module")
def one_thread() -> Iterator[LiveServer]:
    options = ("--max-model-len", "1024", "--threads", "1")
    with serving(MODEL, *options, python=HEADRACE_PYTHON) as running:
        yield running


def headrace(*arguments: str) -> str:
    done = subprocess.run(
        [HEADRACE_PYTHON, "-m", "headrace.cli.main", *arguments], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def bench_serve(server: LiveServer, streams: int, prompt_tokens: int) -> Figures:
    text = headrace(
        "bench", "serve", "--base-url", server.url, "--endpoint", "/v1/chat/completions",
        "--random-input-len", str(prompt_tokens), "--random-output-len",
        str(OUTPUT_TOKENS), "-n", str(REQUESTS), "-c", str(streams), "--temperature", "1",
        "--num-warmups", "0", "--json",
    )  # fmt: skip
    result = json.loads(text)
    assert result["completed"] == REQUESTS
    return Figures(
        ttft_ms=result["ttft_ms"]["mean"],
        itl_ms=result["itl_ms"]["mean"],
        tokens_per_s=result["output_tok_per_s"],
        prompt_tokens=result["prompt_tokens"] / REQUESTS,
    )


def guidellm(server: LiveServer, streams: int, tokenizer: Path, report: Path) -> Figures:
    command = [
        str(Path(sys.executable).with_name("guidellm")), "run",
        "--backend", f"kind=openai_http,target={server.url}",
        "--profile", f"kind=concurrent,streams={streams}",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={OUTPUT_TOKENS}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--output", f"kind=json,path={report}",
        "--disable-console",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    [run] = json.loads(report.read_text())["benchmarks"]
    metrics = run["metrics"]
    assert metrics["request_totals"]["successful"] == REQUESTS
    assert metrics["request_totals"]["errored"] == 0

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    assert mean("output_token_count") == OUTPUT_TOKENS
    return Figures(
        ttft_ms=mean("time_to_first_token_ms"),
        itl_ms=mean("inter_token_latency_ms"),
        tokens_per_s=mean("output_tokens_per_second"),
        prompt_tokens=mean("prompt_token_count"),
    )


def counters(server: LiveServer) -> dict[str, float]:
    text = server.get("/metrics").text
    found = re.findall(r"^headrace:(\w+)\{[^}]*\} ([0-9.e+-]+)$", text, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def between(before: dict[str, float], after: dict[str, float], streams: int) -> Figures:
    """The server's own account of what happened between two looks at /metrics."""

    def grown(name: str) -> float:
        return after[name] - before[name]

    def mean(name: str) -> float:
        return grown(f"{name}_sum") / grown(f"{name}_count")

    assert grown("e2e_request_latency_seconds_count") >= REQUESTS
    return Figures(
        ttft_ms=1e3 * mean("time_to_first_token_seconds"),
        itl_ms=1e3 * mean("inter_token_latency_seconds"),
        # Of a closed loop: so many streams are always in it.
        tokens_per_s=streams
        * grown("generation_tokens_total")
        / grown("e2e_request_latency_seconds_sum"),
        prompt_tokens=mean("request_prompt_tokens"),
    )


def assert_agree(one: Figures, other: Figures) -> None:
    shown = f"{one} and {other}"
    for name in ("ttft_ms", "itl_ms"):
        a, b = getattr(one, name), getattr(other, name)
        assert abs(a - b) <= max(10.0, 0.1 * max(a, b)), f"{name}: {shown}"
    a, b = one.tokens_per_s, other.tokens_per_s
    assert abs(a - b) <= 0.1 * max(a, b), f"tokens_per_s: {shown}"


@pytest.mark.parametrize("streams", [1, 4])
def test_guidellm_agrees_with_metrics_and_bench_serve(
    one_thread: LiveServer, offline: Path, streams: int
) -> None:
    tokenizer = offline / "tokenizer"
    headrace("models", "export-tokenizer", MODEL, str(tokenizer))
    theirs: list[tuple[Figures, Figures]] = []  # the client's, and the server's of its requests
    ours: list[tuple[Figures, Figures]] = []
    for number in range(ROUNDS):
        looks = [counters(one_thread)]
        report = offline / f"report-{number}.json"
        seen = guidellm(one_thread, streams, tokenizer, report)
        looks.append(counters(one_thread))
        sent = bench_serve(one_thread, streams, round(seen.prompt_tokens))
        looks.append(counters(one_thread))
        theirs.append((seen, between(looks[0], looks[1], streams)))
        ours.append((sent, between(looks[1], looks[2], streams)))
    # Whatever else the machine did can only have slowed a round down.
    seen, counted = max(theirs, key=lambda pair: pair[0].tokens_per_s)
    sent, counted_too = max(ours, key=lambda pair: pair[0].tokens_per_s)
    print(f"guidellm {seen}\nmetrics {counted}\nbench serve {sent}\nmetrics {counted_too}")
    assert sent.prompt_tokens == seen.prompt_tokens
    assert_agree(seen, counted)
    assert_agree(sent, counted_too)
    if streams == 1:
        assert_agree(seen, sent)
