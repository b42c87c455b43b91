"""How true `headrace bench serve` is over real sockets, and what a chunk costs it.

    python tools/bench_loadgen.py [--streams 1,32] [--chunks 64] [--clients]

A process of its own serves scripted delays: the first token after 500 ms, then one every 10 ms,
sent by a thread that sleeps until each is due (an event loop's timers are too coarse). The load
generator's medians must be within 2 ms of the script; exits 1 otherwise. --clients: CPU time per
chunk of other HTTP clients on the same stream, where they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import importlib
import itertools
import json
import multiprocessing
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from headrace.bench.serve.metrics import Summary
from headrace.bench.serve.plan import Data, Load, Wanted
from headrace.bench.serve.run import Outcome, run_load
from headrace.bench.serve.target import parse_target

FIRST_S, GAP_S = 0.5, 0.01
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ALLOWED_MS = 2.0


class ScriptedServer:
    """Answers every completion with `chunks` tokens at the scripted times. One thread per
    connection reads requests; one thread sends what is due."""

    def __init__(self, chunks: int, first_s: float, gap_s: float) -> None:
        self._first_s, self._gap_s = first_s, gap_s
        self._answer = [_chunk(_event(index, chunks)) for index in range(chunks)]
        self._answer[0] = _HEAD + self._answer[0]
        self._answer[-1] += _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        # (when, tie-break, connection, index of the chunk to send): the next of every stream.
        self._due: list[tuple[float, int, socket.socket, int]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serves until the process ends."""
        threading.Thread(target=self._send, daemon=True).start()
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while line := stream.readline():
            arrived = time.monotonic()
            length = 0
            while (header := stream.readline()) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            stream.read(length)
            if line.startswith(b"GET"):
                body = b'{"data":[{"id":"scripted"}]}'
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                connection.sendall(head + body)
            else:
                self._schedule(arrived + self._first_s, connection, 0)

    def _schedule(self, due: float, connection: socket.socket, index: int) -> None:
        with self._changed:
            heapq.heappush(self._due, (due, next(self._order), connection, index))
            self._changed.notify()

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    self._changed.wait()
                due = self._due[0][0]
            if (wait := due - time.monotonic()) > 0:
                time.sleep(min(wait, 0.005))
                continue
            with self._changed:
                due, _, connection, index = heapq.heappop(self._due)
            with contextlib.suppress(OSError):
                connection.sendall(self._answer[index])
            if index + 1 < len(self._answer):
                self._schedule(due + self._gap_s, connection, index + 1)


def _event(index: int, chunks: int) -> bytes:
    done = index == chunks - 1
    return b"data: %s\n\n" % json.dumps(
        {
            "id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion",
            "created": 1_790_000_000, "model": "scripted",
            "choices": [{"index": 0, "text": " token", "logprobs": None,
                         "finish_reason": "length" if done else None}],
            "usage": {"prompt_tokens": 8, "completion_tokens": index + 1,
                      "total_tokens": index + 9},
        }
    ).encode()  # fmt: skip


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(pipe: Any, chunks: int, first_s: float, gap_s: float) -> None:
    """The body of the server's process."""
    server = ScriptedServer(chunks, first_s, gap_s)
    pipe.send(server.port)
    server.run()


class Served:
    """A scripted server in a process of its own, while it is open. url: where."""

    def __init__(self, chunks: int, first_s: float, gap_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, chunks, first_s, gap_s), daemon=True
        )
        self._process.start()
        self.url = f"http://127.0.0.1:{ours.recv()}"

    def __enter__(self) -> str:
        return self.url

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def load(url: str, streams: int, rounds: int) -> Outcome:
    """A closed loop of `streams`, `rounds` requests each."""
    return run_load(
        Wanted(
            parse_target(url), Data(count=streams * rounds), Load(max_concurrency=streams),
            "/v1/completions",
        )
    )  # fmt: skip


def check(streams: int, chunks: int, rounds: int) -> bool:
    """Prints one line of the table; whether the medians are right."""
    with Served(chunks, FIRST_S, GAP_S) as url:
        outcome = load(url, streams, rounds)
    summary = outcome.summary
    assert summary is not None
    assert summary.completed == streams * rounds, summary.failures
    e2el_ms = 1e3 * (FIRST_S + (chunks - 1) * GAP_S)
    errors = {
        name: _median(summary, name) - scripted
        for name, scripted in (
            ("ttft", 1e3 * FIRST_S), ("itl", 1e3 * GAP_S), ("tpot", 1e3 * GAP_S), ("e2el", e2el_ms)
        )
    }  # fmt: skip
    cost = outcome.overhead
    assert cost.lag_ms is not None
    p99 = summary.latencies["itl"].at(99)
    print(
        f"{streams:>7}  "
        + "  ".join(f"{name} {error:+.3f}" for name, error in errors.items())
        + f" ms  itl p99 {p99:.2f}  lag {cost.lag_ms.at(50):.2f}/{cost.lag_ms.at(95):.2f} ms  "
        f"{cost.us_per_chunk:.1f} µs/read, own {cost.handling_us:.1f}; "
        f"{100 * cost.cpu_share:.1f} % of a core; {cost.loop}"
    )
    return all(abs(error) <= ALLOWED_MS for error in errors.values())


def _median(summary: Summary, name: str) -> float:
    return summary.latencies[name].at(50)


# ---- other clients ------------------------------------------------------------------------------

#: Chunks of one answer when clients are compared: back to back, so that the client is the limit.
MANY = 20_000


def clients() -> None:
    """CPU microseconds per chunk of a stream of MANY."""
    with Served(MANY, 0.05, 2e-4) as url:
        for name, read in (("httpx", _httpx), ("aiohttp", _aiohttp)):
            try:
                importlib.import_module(name)
            except ImportError:
                print(f"{name}: not installed")
                continue
            begin = time.process_time()
            count = asyncio.run(read(url))
            print(f"{name}: {1e6 * (time.process_time() - begin) / count:.1f} µs per chunk")
        outcome = run_load(
            Wanted(
                parse_target(url), Data(count=1), Load(max_concurrency=1, num_warmups=0),
                "/v1/completions",
            )
        )  # fmt: skip
        assert outcome.summary is not None
        cpu_us = 1e6 * outcome.overhead.cpu_s / outcome.summary.output_tokens
        print(f"headrace ({outcome.overhead.loop}): {cpu_us:.1f} µs per chunk")


async def _httpx(url: str) -> int:
    import httpx

    count = 0
    body = {"model": "scripted", "prompt": "x", "stream": True}
    async with (
        httpx.AsyncClient(timeout=None) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                count += bool(json.loads(line[6:])["choices"])
    return count


async def _aiohttp(url: str) -> int:
    import aiohttp

    count = 0
    body = {"model": "scripted", "prompt": "x", "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json=body) as answer,
    ):
        async for line in answer.content:
            if line.startswith(b"data: {"):
                count += bool(json.loads(line[6:])["choices"])
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", action="store_true")
    arguments = parser.parse_args()
    if arguments.clients:
        clients()
        return
    print("streams  measured − scripted, medians")
    counts = [int(n) for n in arguments.streams.split(",")]
    right = [check(n, arguments.chunks, arguments.rounds) for n in counts]
    if not all(right):
        sys.exit(f"a median is more than {ALLOWED_MS} ms off")


if __name__ == "__main__":
    main()
