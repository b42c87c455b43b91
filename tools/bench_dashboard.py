"""Benchmark of the dashboard: what it costs the machine that serves while somebody watches.

    python tools/bench_dashboard.py [--model NAME] [--streams 16] [--seconds 12] [--json]
                                    [--page serving]

A real server, streams from a client process, `headrace ui --url` in a process of its own, and a
headless Chromium on one of its pages. Told, as shares of one core:

    ui        CPU of the dashboard's process and its children; the browser is not in it
    server    what the server's Python threads used on top while the page was open: their CPU less
              what the same tokens cost before, from two looks at /metrics

Exit code 1 when either is above 2 %. Needs Debian's chromium and chromium-driver, and selenium.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_server import PROMPT, ROOT, Server, body, serving

LIMIT = 0.02
#: Threads whose CPU grows with watching; the steps' own is what watching must not touch.
PARTS = ("asyncio", "engine_outside", "other")
#: A page has drawn what there was before after so many seconds.
SETTLE_S = 3.0
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Look:
    """Totals at one moment: seconds of CPU, tokens."""

    time_s: float
    server_s: float
    steps_s: float
    tokens: float
    ui_s: float


def main() -> None:
    """Measures and prints."""
    options = _options()
    serve = ("--max-num-seqs", "64", "--max-model-len", "2048", "--kv-cache-memory", "512MiB")
    with (
        serving(options.model, *serve) as server,
        _dashboard(server) as (url, pid),
        _streams(server, options.streams),
    ):
        time.sleep(SETTLE_S)
        before = _between(server, pid, options.seconds)
        with _browser(f"{url}{options.page}"):
            time.sleep(SETTLE_S)
            opened = _between(server, pid, options.seconds)
    found = _shares(before, opened)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:28} {value:8.2%}" if "share" in name else f"{name:28} {value:8,.0f}")
    worst = max(found["ui_share"], found["server_share"])
    if worst > LIMIT:
        print(f"{worst:.2%} of a core is more than {LIMIT:.0%}", file=sys.stderr)
        raise SystemExit(1)


def _shares(before: tuple[Look, Look], opened: tuple[Look, Look]) -> dict[str, float]:
    (a, b), (c, d) = before, opened
    per_token = (b.server_s - a.server_s) / max(b.tokens - a.tokens, 1.0)
    seconds, tokens = d.time_s - c.time_s, d.tokens - c.tokens
    return {
        "ui_share": (d.ui_s - c.ui_s) / seconds,
        "server_share": max((d.server_s - c.server_s - per_token * tokens) / seconds, 0.0),
        "ui_share_unwatched": (b.ui_s - a.ui_s) / (b.time_s - a.time_s),
        "server_share_unwatched": (b.server_s - a.server_s) / (b.time_s - a.time_s),
        "tok_per_s_unwatched": (b.tokens - a.tokens) / (b.time_s - a.time_s),
        "tok_per_s": tokens / seconds,
    }


def _between(server: Server, pid: int, seconds: float) -> tuple[Look, Look]:
    first = _look(server, pid)
    time.sleep(seconds)
    return first, _look(server, pid)


def _look(server: Server, pid: int) -> Look:
    m = server.metrics()
    prefix = "headrace:server_cpu_seconds_total"
    return Look(
        time.monotonic(),
        sum(m[f"{prefix}:{part}"] for part in PARTS),
        m[f"{prefix}:step"],
        m["headrace:streamed_tokens_total"],
        sum(_cpu_s(one) for one in _family(pid)),
    )


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                waiting += map(int, children.read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process's threads, to the nanosecond."""
    total = 0
    for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(schedstat.read_text().split()[0])
    return total / 1e9


@contextlib.contextmanager
def _dashboard(server: Server) -> Iterator[tuple[str, int]]:
    """`headrace ui --url`: its address and process id."""
    command = [sys.executable, "-m", "headrace.cli.main", "ui", "--port", "0"]
    command += ["--url", f"http://127.0.0.1:{server.port}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "http://" not in line:
            raise SystemExit(f"the dashboard did not start: {line}")
        yield "http://" + line.split("http://")[1].strip(), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@contextlib.contextmanager
def _streams(server: Server, count: int) -> Iterator[None]:
    """So many streams, one after the other on each connection, until the end of the block."""
    asked = body(MAX_TOKENS, prompt=PROMPT * 2, temperature=0.8)
    order = {"port": server.port, "body": asked, "total": 1_000_000, "concurrency": count}
    client = subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / "stream_client.py"), json.dumps(order)],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        client.kill()
        client.wait()


@contextlib.contextmanager
def _browser(address: str) -> Iterator[Any]:
    """A headless Chromium that looks at a page."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("HEADRACE_CHROMIUM", "/usr/bin/chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,800",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            driver.get(address)
            yield driver
        finally:
            driver.quit()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--page", default="serving")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
