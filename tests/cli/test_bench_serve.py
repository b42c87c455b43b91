"""`headrace bench serve` as a process: formats, files, exit codes, Ctrl-C, and what it imports."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bench.serve.small_server import SmallServer, serving
from bench.serve.virtual import END, HEAD, MODELS, event, response, text, usage_chunk
from command_line import headrace

SRC = Path(__file__).parents[2] / "src"


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "bench", "serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(SRC), "COLUMNS": "200"},
    )  # fmt: skip


def run(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


async def five_tokens(
    server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
) -> None:
    """The first after 20 ms, then one every 5 ms."""
    if path == "/v1/models":
        writer.write(MODELS)
        return
    writer.write(HEAD)
    for i in range(5):
        await asyncio.sleep(0.005 if i else 0.02)
        writer.write(event(text("x", "length" if i == 4 else None, i + 1)))
    writer.write(event(usage_chunk(5, prompt=128)) + event(b"[DONE]") + END)


def test_every_format_says_the_same(tmp_path: Path) -> None:
    saved = tmp_path / "result.json"
    with serving(five_tokens) as server:
        common = ("--base-url", server.url, "-n", "6", "-c", "2", "--random-output-len", "5")
        code, table, err = run(
            *common, "--goodput", "ttft:5000", "tpot:1000", "--save-result", str(saved)
        )
        assert (code, err) == (0, "")
        _, markdown, _ = run(*common, "-o", "md", "--percentile-metrics", "ttft")
        _, as_csv, _ = run(*common, "-o", "csv")
        _, as_json, _ = run(*common, "--json", "--percentiles", "25,75")
    for line in ("requests complete", "TTFT", "TPOT", "ITL", "E2EL", "goodput share", "100 %"):
        assert line in table
    assert "closed loop, 2 at a time" in table
    assert "prompts of 128 tokens, outputs of 5;" in table
    assert "usage in every chunk" in table
    notes = [line for line in table.splitlines() if "NOTE" in line]
    assert all("load generator" in note for note in notes)  # that a busy machine held it up
    assert "| TTFT |" in markdown
    assert "| E2EL |" not in markdown
    [row] = csv.DictReader(io.StringIO(as_csv))
    assert (row["completed"], row["failed"], row["output_tokens"]) == ("6", "0", "30.0")
    assert float(row["ttft_ms_p50"]) >= 20.0
    values = json.loads(as_json)
    assert set(values["ttft_ms"]) == {"count", "mean", "std", "p25", "p75", "min", "max"}
    assert "requests" not in values
    kept = json.loads(saved.read_text())
    assert len(kept["requests"]) == 6
    assert all(len(r["gaps_ms"]) == 4 and r["failure"] is None for r in kept["requests"])
    assert kept["goodput_targets_ms"] == {"ttft": 5000.0, "tpot": 1000.0}


def test_the_key_is_in_no_report(tmp_path: Path) -> None:
    saved = tmp_path / "result.json"
    with serving(five_tokens) as server:
        code, out, err = run(
            "--base-url", server.url, "-n", "1", "--api-key", "hunter2", "--header", "X-A: hunter3",
            "--json", "--save-result", str(saved),
        )  # fmt: skip
        assert server.headers["authorization"] == "Bearer hunter2"
    assert code == 0
    assert "hunter" not in out + err + saved.read_text()


def test_ctrl_c_prints_what_was_measured() -> None:
    async def slower_and_slower(
        server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        if len(server.requests) > 6:
            stalled.set()
            await asyncio.sleep(60)
        await five_tokens(server, path, body, writer)

    stalled = threading.Event()
    with serving(slower_and_slower) as server:
        process = start("--base-url", server.url, "-n", "20", "-c", "2")
        assert stalled.wait(30)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""
    # One of the requests asked for models, one warmed up.
    assert "requests complete" in out
    assert "interrupted: " in out
    assert "in flight" in out


def test_failures_reach_the_exit_code() -> None:
    async def refuses(
        server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        refusal = response(b'{"error": {"message": "no"}}', "503 Service Unavailable")
        writer.write(MODELS if path == "/v1/models" else refusal)

    with serving(refuses) as server:
        code, out, err = run("--base-url", server.url, "-n", "3", "--num-warmups", "0")
        assert (code, err) == (1, "")
        assert "NOTE: 3 requests failed, http_503: no" in out
        code, out, err = run("--base-url", server.url, "-n", "3")
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        assert "http_503: no" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--request-rate", "0"], "--request-rate"),
        (["--goodput", "speed:3"], "--goodput"),
        (["stray"], "Unexpected argument 'stray'"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--dataset-name", "file"], "--dataset-path"),
        (["--dataset-name", "novel"], "--dataset-name"),
        (["--extra-body", "[]"], "--extra-body"),
        (["--extra-body", "{"], "--extra-body"),
        (["--extra-body", '{"a": NaN}'], "--extra-body"),
        (["--temperature", "nan"], "--temperature"),
        (["--output", "xml"], "--output"),
        (["--save-result", "/nowhere/at/all.json"], "--save-result"),
        (["--base-url", "nonsense://x"], "--base-url"),
        (["--timeout", "0"], "--timeout"),
    ],
)
def test_wrong_flags_are_one_sentence(arguments: list[str], message: str) -> None:
    result = headrace("bench", "serve", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_is_no_unicode_is_not_sent(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "lone \\ud800"}\n')
    with serving(five_tokens) as server:
        code, _, err = run(
            "--base-url", server.url, "--dataset-name", "file", "--dataset-path", str(prompts)
        )
    assert code == 2
    assert err.startswith("headrace: A request cannot be written as UTF-8: ")
    assert r"lone \ud800" in err


def test_it_starts_without_anything_heavy() -> None:
    code = (
        "import sys, headrace.cli.main, headrace.bench.serve.run, headrace.bench.serve.report; "
        "print(sorted({'torch', 'numpy', 'transformers', 'headrace.engine', 'headrace.server', "
        "'headrace.native', 'httpx', 'fastapi', 'pydantic'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert result.stdout.strip() == "[]"
