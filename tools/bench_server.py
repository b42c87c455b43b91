"""Benchmark of the server: the price of serving, next to the same work without it.

    python tools/bench_server.py [PART…] [--json] [--check] [--model NAME] [--small NAME]

    cpu         CPU of the server outside of the engine's steps, per streamed token, at 1 and 32
                streams (from two looks at /metrics)
    watch       what somebody who listens to GET /events costs at 16 streams, in shares of a core,
                in interleaved runs
    throughput  32 streams at once against the same batch through `LLM`, in interleaved runs
    ttft        time to first token at idle, server minus in-process, interleaved
    open        512 streams open at once
    leak        10,000 short requests: growth of memory, blocks left in use; with the prefix cache
    leak-anew   the same without it

The client is a process of its own (tools/stream_client.py); its CPU is reported, since it works on
the same machine. --check fails when a limit does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams

ROOT = Path(__file__).parents[1]
PROMPT = "The mill stood at the end of the headrace, where the water was quiet and deep. " * 2
#: Result → (largest or smallest allowed, unit).
LIMITS: dict[str, tuple[str, float, str]] = {
    "cpu_us_per_token_at_32": ("≤", 60, "µs"),
    "cpu_us_per_token_at_1": ("≤", 250, "µs"),
    "listener_share_of_a_core": ("≤", 0.01, ""),
    "throughput_share_of_offline": ("≥", 0.9, ""),
    "added_ttft_ms": ("≤", 5, "ms"),
    "open_streams_failed": ("≤", 0, ""),
    "rss_growth_mb_cache_on": ("≤", 20, "MB"),
    "blocks_left_cache_on": ("≤", 0, ""),
    "rss_growth_mb_cache_off": ("≤", 20, "MB"),
    "blocks_left_cache_off": ("≤", 0, ""),
}


class Server:
    """A server process; `metrics` reads what it tells."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def metrics(self) -> dict[str, float]:
        """Name, with the last label's value where there is one → value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        found = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                base, part = name.split("{")[0], re.search(r'part="(\w+)"', name)
                found[base if part is None else f"{base}:{part[1]}"] = float(value)
        return found

    def load(self, body: dict[str, Any], total: int, concurrency: int) -> dict[str, Any]:
        """One run of the client; raises when a request failed."""
        result = self.try_load(body, total, concurrency)
        if result["num_errors"]:
            raise SystemExit(f"{result['num_errors']} requests failed: {result['errors']}")
        return result

    def try_load(self, body: dict[str, Any], total: int, concurrency: int) -> dict[str, Any]:
        order = {"port": self.port, "body": body, "total": total, "concurrency": concurrency}
        client = subprocess.run(
            [sys.executable, str(ROOT / "tools" / "stream_client.py"), json.dumps(order)],
            check=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(client.stdout)
        return found


@contextlib.contextmanager
def serving(model: str, *options: str) -> Iterator[Server]:
    """A server on a free port, ready to answer."""
    command = [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "serve",
        model,
        "--port",
        "0",
        "--offline",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen([*command, *options], stderr=log, env=environment)
        try:
            yield Server(_wait_for_port(process, Path(log.name)), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    for _ in range(1200):
        found = re.search(r"listening url=http://127\.0\.0\.1:(\d+)", log.read_text())
        if found and "is ready" in log.read_text():
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def body(max_tokens: int, **more: Any) -> dict[str, Any]:
    """A stream of so many tokens."""
    return {
        "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "stream": True,
        "temperature": 0, "stream_options": {"include_usage": True}, **more,
    }  # fmt: skip


# ---- parts --------------------------------------------------------------------------------------

_OUTSIDE = ("asyncio", "engine_outside", "other")


def cpu(options: argparse.Namespace) -> dict[str, float]:
    """Server-side CPU outside of the engine per streamed token."""
    result: dict[str, float] = {}
    with serving(options.small, "--kv-cache-memory", "512MiB") as server:
        server.load(body(16), 32, 32)
        for streams, tokens, runs in ((32, 256, 3), (1, 256, 3)):
            figures = [_cpu_run(server, streams, tokens) for _ in range(runs)]
            for name in figures[0]:
                result[f"{name}_at_{streams}"] = statistics.median(f[name] for f in figures)
    return result


def _cpu_run(server: Server, streams: int, tokens: int) -> dict[str, float]:
    """One run; looking costs CPU too, which a second look measures."""
    server.metrics()
    empty = server.metrics()
    before = server.metrics()
    client = server.load(body(tokens), streams, streams)
    after = server.metrics()

    def used(part: str, end: dict[str, float], start: dict[str, float]) -> float:
        name = f"headrace:server_cpu_seconds_total:{part}"
        return end[name] - start[name]

    streamed = after["headrace:streamed_tokens_total"] - before["headrace:streamed_tokens_total"]
    parts = {p: used(p, after, before) - used(p, before, empty) for p in _OUTSIDE}
    return {
        "cpu_us_per_token": sum(parts.values()) / streamed * 1e6,
        **{f"cpu_us_per_token_{part}": s / streamed * 1e6 for part, s in parts.items()},
        "tokens_per_s": client["tokens"] / client["wall_s"],
        "client_cpu_us_per_token": client["client_cpu_s"] / client["tokens"] * 1e6,
    }


def watch(options: argparse.Namespace) -> dict[str, float]:
    """The same at 16 streams, with and without a listener at the highest rate."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    speeds: dict[bool, list[float]] = {False: [], True: []}
    with serving(options.small, "--kv-cache-memory", "512MiB") as server:
        server.load(body(16), 16, 16)
        for _ in range(options.runs):
            for watched in (False, True):
                with _listener(server) if watched else contextlib.nullcontext():
                    figures = _cpu_run(server, 16, 256)
                costs[watched].append(figures["cpu_us_per_token"])
                speeds[watched].append(figures["tokens_per_s"])
    alone, more = (statistics.median(costs[watched]) for watched in (False, True))
    speed = statistics.median(speeds[True])
    return {
        "cpu_us_per_token_at_16": alone,
        "cpu_us_per_token_at_16_watched": more,
        "listener_share_of_a_core": (more - alone) * speed / 1e6,
        "watched_share_of_speed": speed / statistics.median(speeds[False]),
    }


@contextlib.contextmanager
def _listener(server: Server) -> Iterator[None]:
    """Somebody who reads four snapshots a second."""
    code = "import sys, urllib.request as u\nfor _ in u.urlopen(sys.argv[1]): pass"
    url = f"http://127.0.0.1:{server.port}/events?interval=0.25"
    process = subprocess.Popen([sys.executable, "-c", code, url])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def throughput(options: argparse.Namespace) -> dict[str, float]:
    """32 streams through the server and through LLM, one after the other."""
    tokens, streams = 48, 32
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    offline: list[float] = []
    served: list[float] = []
    shares: list[float] = []
    llm = LLM(options.model, offline=True, kv_cache_memory="1GiB", enable_prefix_caching=False)
    with serving(
        options.model, "--kv-cache-memory", "1GiB", "--no-enable-prefix-caching"
    ) as server:
        llm.generate([PROMPT] * 2, params.replace(max_tokens=2))
        server.load(body(2), 2, 2)
        for _ in range(options.runs):
            began = time.monotonic()
            outputs = llm.generate([PROMPT] * streams, params)
            seconds = time.monotonic() - began
            offline.append(sum(len(o.outputs[0].token_ids) for o in outputs) / seconds)
            client = server.load(body(tokens), streams, streams)
            served.append(client["tokens"] / client["wall_s"])
            shares.append(client["client_cpu_s"] / client["wall_s"])
    return {
        "offline_tok_per_s": statistics.median(offline),
        "server_tok_per_s": statistics.median(served),
        "throughput_share_of_offline": statistics.median(map(operator.truediv, served, offline)),
        "client_cpu_share_of_one_core": statistics.median(shares),
    }


def ttft(options: argparse.Namespace) -> dict[str, float]:
    """Added time to first token at idle."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    inside: list[float] = []
    outside: list[float] = []
    llm = LLM(options.small, offline=True, kv_cache_memory="256MiB", enable_prefix_caching=False)
    with serving(
        options.small, "--kv-cache-memory", "256MiB", "--no-enable-prefix-caching"
    ) as server:
        llm.generate([PROMPT], params)
        server.load(body(1), 1, 1)
        for _ in range(12):  # pairs of blocks: a machine that changes its pace changes both
            outside.append(statistics.median(server.load(body(1), 6, 1)["first_s"][1:]))
            inside.append(statistics.median(_time_to_first(llm, params) for _ in range(5)))
    return {
        "ttft_in_process_ms": statistics.median(inside) * 1e3,
        "ttft_server_ms": statistics.median(outside) * 1e3,
        "added_ttft_ms": statistics.median(map(operator.sub, outside, inside)) * 1e3,
    }


def _time_to_first(llm: LLM, params: SamplingParams) -> float:
    began = time.monotonic()
    llm.generate([PROMPT], params)
    return time.monotonic() - began


def open_streams(options: argparse.Namespace) -> dict[str, float]:
    """512 streams that are open at once; every one must end well and complete."""
    streams, tokens = 512, 32
    with serving(options.small, "--kv-cache-memory", "1GiB") as server:
        result = server.try_load(body(tokens), streams, streams)
    complete = result["done"] if result["tokens"] == streams * tokens else 0
    return {
        "open_streams": streams,
        "open_streams_failed": streams - complete,
        "open_streams_tok_per_s": result["tokens"] / result["wall_s"],
    }


def leak(options: argparse.Namespace) -> dict[str, float]:
    """Memory and blocks after many short requests, half of them streams."""
    return _leak(options, "on", "--enable-prefix-caching")


def leak_anew(options: argparse.Namespace) -> dict[str, float]:
    """The same without the prefix cache."""
    return _leak(options, "off", "--no-enable-prefix-caching")


def _leak(options: argparse.Namespace, cache: str, flag: str) -> dict[str, float]:
    with serving(options.small, "--kv-cache-memory", "512MiB", flag) as server:
        short = body(3) | {"prompt": "The mill"}
        whole = {k: v for k, v in short.items() if k != "stream_options"} | {"stream": False}

        def requests(count: int) -> None:
            server.load(short, count // 2, 32)
            server.load(whole, count // 2, 32)

        requests(2000)
        before = server.metrics()
        requests(options.requests)
        after = server.metrics()
    name = "process_resident_memory_bytes"
    return {
        f"leak_requests_cache_{cache}": options.requests,
        f"rss_growth_mb_cache_{cache}": (after[name] - before[name]) / 1e6,
        f"blocks_left_cache_{cache}": after["headrace:kv_blocks_used"],
        f"cached_tokens_cache_{cache}": after["headrace:prefix_cache_hits_total"],
    }


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "cpu": cpu, "watch": watch, "throughput": throughput, "ttft": ttft, "open": open_streams,
    "leak": leak, "leak-anew": leak_anew,
}  # fmt: skip


def broken(result: dict[str, float]) -> list[str]:
    """What does not keep its limit, one sentence each."""
    found = []
    for name, (sign, limit, unit) in LIMITS.items():
        value = result.get(name)
        if value is not None and (value > limit if sign == "≤" else value < limit):
            found.append(f"{name} = {value:.3g} {unit}, must be {sign} {limit:g}")
    return found


def _line(item: tuple[str, float]) -> str:
    name, value = item
    limit = LIMITS.get(name)
    must = "" if limit is None else f"   {limit[0]} {limit[1]:g} {limit[2]}"
    return f"{name:40} {value:10.4g}{must}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all"
    )
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="of the throughput")
    parser.add_argument("--small", default="smollm2-135m", help="of everything else")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of the throughput")
    parser.add_argument("--requests", type=int, default=10_000, help="of the leak test")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit does not hold")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    result: dict[str, float] = {}
    for name in options.parts or PARTS:
        found = PARTS[name](options)
        result |= found
        if not options.json:
            print("\n".join(map(_line, found.items())), end="\n\n", flush=True)
    if options.json:
        print(json.dumps(result, indent=2))
    problems = broken(result) if options.check else []
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
