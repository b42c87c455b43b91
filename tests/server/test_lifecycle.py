"""From the first byte to the exit status: loading, draining, hurrying, refusing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_line import headrace
from live_server import ROOT, LiveServer, serving
from raw_http import RawClient, exchange, request
from slow_reader import paused_reader
from waiting import until

pytestmark = pytest.mark.models

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}


def events(body: bytes) -> list[str]:
    return [e.removeprefix("data: ") for e in body.decode().split("\n\n") if e[:6] == "data: "]


# ---- stopping -----------------------------------------------------------------------------------


def test_a_stop_lets_running_requests_finish() -> None:
    options = ("--max-model-len", "512", "--max-num-seqs", "2", "--drain-timeout", "120")
    with serving("smollm2-135m", *options) as server:
        held = paused_reader(server)  # the stop cannot end before it is read
        clients = [RawClient(server.url) for _ in range(3)]  # the third waits
        for client in clients:
            client.post(PATH, {**LONG, "max_tokens": 120})
        assert b"data: " in clients[0].peek(300)
        whole = RawClient(server.url)
        whole.post(PATH, {**LONG, "max_tokens": 20, "stream": False})
        kept = RawClient(server.url)  # a connection from before
        kept.send(request("GET", "/v1/models"))
        assert kept.answer().status == 200
        server.process.send_signal(signal.SIGTERM)
        for path in ("/v1/models", "/health"):
            refused = wait_for_status(server, path, 503)
            assert refused.headers["retry-after"]
            assert "shutting down" in refused.json()["error"]["message"]
        kept.post(PATH, LONG)
        assert kept.answer().status == 503
        assert events(clients[0].answer().body)[-1] == "[DONE]"
        for client in (*clients[1:], held):
            found = events(client.answer().body)
            assert found[-1] == "[DONE]"
            assert json.loads(found[-2])["choices"][0]["finish_reason"] == "length"
        assert whole.answer().json["usage"]["completion_tokens"] == 20
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("second", [None, signal.SIGTERM, signal.SIGINT])
def test_what_does_not_finish_is_told_why(second: int | None) -> None:
    """After the drain timeout, or at a second signal."""
    drain = "1" if second is None else "60"
    with serving("smollm2-135m", "--max-num-seqs", "1", "--drain-timeout", drain) as server:
        running, waiting, whole = (RawClient(server.url) for _ in range(3))
        running.post(PATH, {**LONG, "max_tokens": 8000})
        assert b"data: " in running.peek(300)
        waiting.post(PATH, LONG)
        whole.post(PATH, {**LONG, "stream": False})
        wait_for_load(server, 3)
        server.process.send_signal(signal.SIGTERM)
        if second is not None:
            wait_for_status(server, "/health", 503)  # the first has been heard
            server.process.send_signal(second)
        for client in (running, waiting):
            error = json.loads(events(client.answer().body)[-1])["error"]
            assert "shutting down" in error["message"]
        answer = whole.answer()
        assert answer.status == 503
        assert "shutting down" in answer.json["error"]["message"]
        assert server.process.wait(60) == 0


def test_readers_who_do_not_read_hold_up_no_stop() -> None:
    """What they have not taken by then is cut off, and nothing is logged as an error."""
    with serving("smollm2-135m", "--drain-timeout", "0") as server:
        readers = [paused_reader(server) for _ in range(2)]
        assert server.stop() == 0
        assert "error:" not in server.log()
        for reader in readers:
            assert b"[DONE]" not in reader.rest()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_loading(number: int) -> None:
    """Does not wait for the model."""
    with serving("smollm2-135m", ready=False) as server:
        server.process.send_signal(number)
        assert server.process.wait(60) == 0


def test_a_stop_ends_idle_and_half_sent_connections() -> None:
    with serving("smollm2-135m") as server:
        idle, half = RawClient(server.url), RawClient(server.url)
        idle.send(request("GET", "/health"))
        assert idle.answer().status == 200
        half.send(request("POST", PATH, LONG)[:-10])
        time.sleep(0.1)
        assert server.stop() == 0  # left alone, they would have more than a minute
        assert idle.closed_within(1)
        assert half.closed_within(1)


def wait_for_status(server: LiveServer, path: str, status: int) -> httpx.Response:
    def answered() -> httpx.Response | None:
        answer = server.get(path)
        return answer if answer.status_code == status else None

    return until(answered, f"{path} answers {status}")


def wait_for_load(server: LiveServer, num_open: int) -> None:
    until(lambda: server.json("/load")["server_load"] == num_open, f"{num_open} are open")


# ---- not starting -------------------------------------------------------------------------------


def refused_start(*arguments: str) -> tuple[int, str]:
    """Exit status and the last line on stderr of a server that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "serve", *arguments, "--offline"],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, lines[-1]


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, line = refused_start("smollm2-135m", "--port", port)
    assert status == 2
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--host", "192.0.2.1"], "192.0.2.1"),
        (["--host", "a..b"], "a..b"),
        (["--allow-origin", "http://a.example/"], "http://a.example/"),
        (["--reader-timeout", "0"], "reader-timeout"),
        (["--max-body-mib", "inf"], "max-body-mib"),
    ],
)
def test_flags_that_cannot_be_meant_say_why(arguments: list[str], word: str) -> None:
    result = headrace("serve", "smollm2-135m", "--port", "0", *arguments, "--offline")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert word in result.stderr


def test_a_model_or_a_template_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(range(256)) * 100)
    for arguments, status, word in (
        (["no-such-model"], 1, "no-such-model"),
        (["smollm2-135m", "--chat-template", "{% if %}"], 1, "template"),
        (["smollm2-135m", "--chat-template", "/no/such/file"], 2, "/no/such/file"),
        ([str(damaged)], 1, "damaged.gguf"),
    ):
        found, line = refused_start(*arguments, "--port", "0")
        assert found == status, line
        assert word in line


def test_a_process_of_few_open_files(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n 64\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with serving("smollm2-135m", python=python) as server:
        clients = [RawClient(server.url) for _ in range(12)]  # idle ones
        assert server.healthy()
        for client in clients:
            client.socket.close()


def test_a_context_shorter_than_any_chat() -> None:
    names = ("-a", "tiny", "-a", "small", "-a", "tiny")
    with serving("smollm2-135m", "--max-model-len", "2", "--max-num-seqs", "1", *names) as server:
        assert [card["id"] for card in server.json("/v1/models")["data"]] == ["tiny", "small"]
        answer = server.json("/v1/completions", {"prompt": [5], "max_tokens": 1})
        assert answer["usage"]["completion_tokens"] == 1
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        assert server.refusal("/v1/chat/completions", chat)["code"] == "context_length_exceeded"


# ---- serving ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[LiveServer]:
    """One request runs, two wait, nobody stays longer than four seconds."""
    options = ("--max-num-seqs", "1", "--max-queued-requests", "2", "--request-timeout", "4")
    with serving("smollm2-135m", *options) as server:
        yield server


def test_a_full_queue(small: LiveServer) -> None:
    clients = [RawClient(small.url) for _ in range(3)]
    for client in clients:
        client.post(PATH, {**LONG, "max_tokens": 3000})
    wait_for_load(small, 3)
    for stream in (True, False):
        answer = exchange(small.url, request("POST", PATH, {**LONG, "stream": stream}))
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json["error"]["type"] == "rate_limit_exceeded"
    for client in clients:
        client.socket.close()
    assert small.idle()
    assert small.json(PATH, {"prompt": "a", "max_tokens": 1})


def test_more_prompts_than_ever_fit_are_no_full_queue(small: LiveServer) -> None:
    """Trying again later would not help."""
    error = small.refusal(PATH, {"prompt": ["a"] * 4, "max_tokens": 1})
    assert "4 prompts" in error["message"]


@pytest.mark.parametrize("timeout", [0.3, None], ids=["request", "server"])
def test_a_deadline(small: LiveServer, timeout: float | None) -> None:
    """Of a stream and of a whole answer; one of them waits for its turn until then."""
    body = {**LONG, "max_tokens": 8000, "timeout": timeout}
    with RawClient(small.url) as streamed, RawClient(small.url) as whole:
        streamed.post(PATH, body)
        whole.post(PATH, {**body, "stream": False})
        answer = streamed.answer()
        assert answer.status == 200
        errors = [json.loads(events(answer.body)[-1])["error"]]
        answer = whole.answer()
        assert answer.status == 408
        errors.append(answer.json["error"])
    assert [error["code"] for error in errors] == ["deadline_exceeded"] * 2
    assert small.idle(within_s=1.0)


def test_a_deadline_in_the_queue(small: LiveServer) -> None:
    first = RawClient(small.url)
    first.post(PATH, {**LONG, "max_tokens": 8000})
    assert b"data: " in first.peek(300)
    body = {"prompt": "a", "max_tokens": 1, "timeout": 0.2}
    assert exchange(small.url, request("POST", PATH, body)).status == 408
    first.socket.close()
    assert small.idle()


@pytest.mark.parametrize("timeout", [0, -1, 1e300, 1e-9])
def test_absurd_deadlines(small: LiveServer, timeout: float) -> None:
    body = {"prompt": "a", "max_tokens": 1, "timeout": timeout}
    status = exchange(small.url, request("POST", PATH, body)).status
    assert status == (400 if timeout <= 0 else 200 if timeout > 1 else 408)


def test_priorities(small: LiveServer) -> None:
    """The urgent one that came last is served before the patient one that waited."""
    first = RawClient(small.url)
    first.post(PATH, {**LONG, "max_tokens": 8000})
    assert b"data: " in first.peek(300)
    order: list[int] = []

    def ask(priority: int) -> None:
        small.json(PATH, {"prompt": "a", "max_tokens": 8, "priority": priority})
        order.append(priority)

    threads = []
    for number, priority in enumerate((5, -5)):
        threads.append(threading.Thread(target=ask, args=(priority,)))
        threads[-1].start()
        wait_for_load(small, number + 2)
    first.socket.close()
    for thread in threads:
        thread.join()
    assert order == [-5, 5]


# ---- the key ------------------------------------------------------------------------------------


def all_paths() -> list[tuple[str, str]]:
    """Method and path of every route of the application, also of those still to be written."""
    from headrace.server.app import build_app
    from headrace.server.context import Context
    from headrace.server.settings import ServeSettings

    app = build_app(Context(ServeSettings(("m",))))
    found = []
    for route in app.routes:
        for method in sorted(getattr(route, "methods", None) or ()):
            found.append((method, route.path.replace("{model_id:path}", "a")))  # type: ignore[attr-defined]
    assert ("POST", "/v1/chat/completions") in found
    assert ("GET", "/openapi.json") in found
    return found


@pytest.fixture(scope="module")
def locked() -> Iterator[LiveServer]:
    options = ("--max-model-len", "256", "--allow-origin", "https://a.example")
    with serving("smollm2-135m", *options, env={"HEADRACE_API_KEY": "secret"}) as server:
        server.http.headers["authorization"] = "Bearer secret"
        yield server


def raw_status(server: LiveServer, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.http.base_url.port, timeout=30)
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_row_58_the_key_guards_every_route(locked: LiveServer) -> None:
    odd = ["/health/", "//health", "/%68ealth", "/HEALTH", "/health%2f", "/health/../v1/models",
           "/", "//v1/models", "/v1/models/", "/V1/models", "/v1//models", "/docs", "/redoc",
           "/nothing", "/v1/models/../../metrics", "/.", "/v1/chat/completions/",
           "/%2e%2e/metrics"]  # fmt: skip
    wrong: list[dict[str, str]] = [
        {}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}, {"x-api-key": ""},
        {"authorization": "secret"}, {"authorization": "Basic secret"}, {"cookie": "key=secret"},
        {"authorization": "Bearer secretx"}, {"authorization": "Bearer secre"},
    ]  # fmt: skip
    for method, path in all_paths() + [(m, p) for p in odd for m in ("GET", "POST", "HEAD")]:
        for headers in wrong if path == "/v1/models" else wrong[:2]:
            status = raw_status(locked, method, path, headers)
            is_open = path in ("/health", "/%68ealth")
            assert is_open or status == 401, (method, path, headers, status)
        for method_ in ("HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH"):
            if path not in ("/health", "/%68ealth"):
                assert raw_status(locked, method_, path, {}) == 401
    assert raw_status(locked, "GET", "/health", {}) == 200
    assert raw_status(locked, "GET", "/v1/models", {"x-api-key": "secret"}) == 200
    assert raw_status(locked, "GET", "/v1/models", {"authorization": "bearer secret"}) == 200


def test_cors_is_for_the_origins_that_were_named(locked: LiveServer) -> None:
    """A browser's question before a request carries no key, and learns nothing but that."""
    ask = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    yes = locked.http.options("/v1/models", headers={"origin": "https://a.example", **ask})
    assert yes.status_code == 200
    assert yes.headers["access-control-allow-origin"] == "https://a.example"
    no = locked.http.options("/v1/models", headers={"origin": "https://b.example", **ask})
    assert "access-control-allow-origin" not in no.headers
    locked_out = exchange(
        locked.url, request("GET", "/v1/models", headers="Origin: https://a.example\r\n"), "GET"
    )
    assert locked_out.status == 401


def test_a_page_of_another_origin_cannot_post(small: LiveServer) -> None:
    """What a browser sends without asking first is never application/json."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        data = request("POST", PATH, {"prompt": "a"}, f"Content-Type: {kind}\r\n")
        assert exchange(small.url, data).status == 415
    assert "access-control-allow-origin" not in small.get("/health").headers
