"""`headrace run-batch` as a real process: answers, bad lines, and kill -9 at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import headrace
from live_server import LiveServer

pytestmark = pytest.mark.models

SOURCE = Path(__file__).parents[2] / "src"
MODEL = "smollm2-135m"
NEWLINE = b"\n"


def command(source: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "headrace.cli.main", "run-batch", str(source), str(out),
        "--model", MODEL, "--max-model-len", "512", "--max-num-seqs", "4", "--offline", *more,
    ]  # fmt: skip


def run(source: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        command(source, out, *more), capture_output=True, text=True, timeout=300, env=env,
        check=False,
    )  # fmt: skip


def request(number: int) -> dict[str, Any]:
    """A line of every kind in turn, each with one right answer."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("completions", {"prompt": f"Number {number}:", "max_tokens": 20, "temperature": 0}),
        ("chat/completions", {
            "messages": [{"role": "user", "content": f"Say {number}."}],
            "max_tokens": 24, "seed": number, "temperature": 1.0, "n": 2,
        }),
        ("embeddings", {"input": f"Text {number}"}),
        ("completions", {"prompt": [f"{number} a", f"{number} b"], "max_tokens": 8, "seed": 3,
                         "logprobs": 2}),
        ("responses", {"input": f"Hello {number}", "max_output_tokens": 8, "temperature": 0}),
        ("chat/completions", {
            "messages": [{"role": "user", "content": "yes or no?"}], "seed": number,
            "structured_outputs": {"choice": ["yes", "no"]},
        }),
        ("completions", {"prompt": "a", "max_tokens": -1}),
    ]  # fmt: skip
    url, body = bodies[number % len(bodies)]
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": f"/v1/{url}",
        "body": {"model": MODEL, **body},
    }


def write(path: Path, lines: list[Any]) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")


def essence(line: dict[str, Any]) -> Any:
    """What does not depend on when and how often it was tried: no names, no clocks."""
    body = (line["response"] or {}).get("body")
    if body is None:
        return line["error"]
    if "error" in body:
        return body["error"]
    parts = body.get("choices") or body.get("data")
    if parts is None:
        parts = [item["content"] for item in body["output"]]
    return parts, {name: count for name, count in body["usage"].items() if "details" not in name}


def answers(path: Path) -> dict[str, Any]:
    """custom_id → essence; every line is whole and nothing is there twice."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {line["custom_id"]: essence(line) for line in lines}
    assert len(found) == len(lines)
    assert len({line["id"] for line in lines}) == len(lines)
    return found


def test_killed_at_any_moment_it_ends_with_the_same_answers(tmp_path: Path) -> None:
    source, whole, broken = tmp_path / "in", tmp_path / "whole", tmp_path / "broken"
    count = 49
    write(source, [request(number) for number in range(count)])
    done = run(source, whole)
    assert done.returncode == 0, done.stderr
    assert f"{count}/{count} lines, 7 refused" in done.stderr
    want = answers(whole)
    assert set(want) == {f"line-{number}" for number in range(count)}
    chance = random.Random(4)
    kills = 0
    while kills < 3:
        process = subprocess.Popen(
            command(source, broken), stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )  # fmt: skip
        before = broken.read_bytes() if broken.exists() else b""
        wait_for_lines(broken, before.count(NEWLINE) + chance.randint(1, 14), process)
        time.sleep(chance.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        after = broken.read_bytes()
        lines = before[: before.rfind(b"\n") + 1]
        assert after.startswith(lines), "what was written has changed"
        print(f"killed with {after.count(NEWLINE)} of {count} lines, {len(after)} bytes")
        if after.count(b"\n") == count:
            break
    assert kills >= 2
    assert broken.read_bytes().count(b"\n") > 0
    with broken.open("ab") as file:  # the kill that leaves half a line
        file.write(b'{"id":"batch_req_7_0123')
    done = run(source, broken)
    assert done.returncode == 0, done.stderr
    assert "already answered" in done.stderr
    assert "dropped a last line that was cut off (23 bytes)" in done.stderr
    assert answers(broken) == want
    again = headrace(*command(source, broken)[3:])
    assert f"{count} lines, {count} of them already answered" in again.stderr


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and path.read_bytes().count(NEWLINE) >= count:
            return
        time.sleep(0.005)


def test_answers_are_the_servers(tmp_path: Path, smollm2: LiveServer) -> None:
    """One parser, one renderer: a line's body is what HTTP answers."""
    source, out = tmp_path / "in", tmp_path / "out"
    write(source, [request(number) for number in range(7)])
    assert run(source, out).returncode == 0
    lines = {
        line["custom_id"]: line
        for line in map(json.loads, out.read_text(encoding="utf-8").splitlines())
    }
    for number in range(7):
        asked, line = request(number), lines[f"line-{number}"]
        answer = smollm2.post(asked["url"], asked["body"])
        assert line["response"]["status_code"] == answer.status_code
        body = answer.json()
        assert line["response"]["body"].keys() == body.keys()
        live = {"response": {"body": body}}
        assert essence(line) == essence(live)


def test_bad_lines_have_error_lines_and_stop_nothing(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    good = request(0)
    bad: list[Any] = [
        "{",
        "[1]",
        '"text"',
        '{"custom_id": "nan", "url": "/v1/completions", "body": {"prompt": NaN}}',
        "[" * 10_000,
        {"url": "/v1/completions", "body": {}},
        {**good, "custom_id": ""},
        {**good, "custom_id": 7},
        {**good, "custom_id": "get", "method": "GET"},
        {**good, "custom_id": "url", "url": "/v1/images"},
        {**good, "custom_id": "url2", "url": ["/v1/completions"]},
        {**good, "custom_id": "body", "body": [1]},
        {**good, "custom_id": "stream", "body": {"prompt": "a", "stream": True}},
        {**good, "custom_id": "model", "body": {"model": "gpt-4o", "prompt": "a"}},
        {**good, "custom_id": "field", "body": {"prompt": "a", "temprature": 1}},
        {**good, "custom_id": "long", "body": {"prompt": [[1] * 600]}},
        {**good, "custom_id": "ids", "body": {"prompt": [[10**9]]}},
        {**good, "custom_id": "line-0"},
    ]
    write(source, [good, *bad, "", request(4)])
    done = run(source, out)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 1 + len(bad) + 1
    by_number = {int(line["id"].split("_")[2]): line for line in lines}
    assert by_number[1]["error"] is None
    assert by_number[len(bad) + 3]["custom_id"] == "line-4"
    for number, line in by_number.items():
        if 1 < number < len(bad) + 2:
            assert line["error"]["message"], line
            assert 400 <= line["response"]["status_code"] < 500, line
    assert by_number[len(bad) + 1]["error"]["code"] == "duplicate_custom_id"
    assert "line 1" in by_number[len(bad) + 1]["error"]["message"]
    named = {line["custom_id"]: line["response"] for line in lines}
    assert named["model"]["status_code"] == 404
    assert named["long"]["body"]["error"]["code"] == "context_length_exceeded"
    assert named["field"]["body"]["error"]["param"] == "temprature"


def test_wrong_use(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write(source, [request(0)])

    def refused(*arguments: object) -> str:
        result = headrace("run-batch", *map(str, arguments), "--model", MODEL, "--offline")
        assert result.returncode == 2, result.stderr
        return result.stderr

    assert "There is no file" in refused(tmp_path / "none", out)
    assert "is not a file" in refused(tmp_path, out)
    assert "same file" in refused(source, source)
    assert "MODEL is needed" in headrace("run-batch", str(source), str(out)).stderr
    named = [*command(source, out)[:4], "-i", str(source), "-o", str(out), "--model", MODEL]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [*named, "--offline"], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    write(source, [request(0), request(1)])
    assert "other settings" in refused(source, out, "--max-model-len", "256")
    write(source, [request(1)])
    assert "input was changed" in refused(source, out)


def test_interrupted_it_leaves_whole_lines(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write(source, [request(7 * number) | {"custom_id": str(number)} for number in range(60)])
    process = subprocess.Popen(
        command(source, out), stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    wait_for_lines(out, 1, process)
    process.send_signal(signal.SIGINT)
    assert "the same command goes on" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert out.read_bytes().endswith(b"\n")
    assert run(source, out).returncode == 0
    assert len(answers(out)) == 60


@pytest.mark.parametrize("trouble", ["the input is cut", "the output is removed"])
def test_files_that_change_meanwhile_are_told(tmp_path: Path, trouble: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write(source, [request(7 * number) | {"custom_id": str(number)} for number in range(300)])
    process = subprocess.Popen(
        command(source, out, "--max-num-seqs", "2"), stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    wait_for_lines(out, 1, process)
    if trouble == "the input is cut":
        os.truncate(source, 0)
    else:
        out.unlink()
    assert process.stderr is not None
    told = process.stderr.read()
    assert process.wait(60) == 1
    assert "ended sooner" in told if out.exists() else f"{out}: the file was removed" in told
