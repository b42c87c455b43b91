"""Rows 21 and 22: clients that leave, at every moment and in every way. In a second nothing of
theirs runs any more, their memory is free, and nobody else has noticed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from live_server import LiveServer, serving
from neighbour import Neighbour, used_blocks
from raw_http import RawClient, request
from waiting import comes_within, until

pytestmark = pytest.mark.models

#: How fast whatever a client has left behind must be gone.
GONE_S = 1.0
PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "The sea", "max_tokens": 900, "ignore_eos": True, "stream": True}
WHOLE: dict[str, Any] = {**LONG, "stream": False}
PROMPT: dict[str, Any] = {
    "prompt": [5] * 800, "max_tokens": 200, "ignore_eos": True, "stream": True,
    "cache_prompt": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    options = ("--max-model-len", "1024", "--max-num-seqs", "4", "--max-num-batched-tokens", "32")
    with serving("smollm2-135m", *options) as running:
        yield running


def close(client: RawClient) -> None:
    client.socket.close()


def half_close(client: RawClient) -> None:
    client.socket.shutdown(1)


def reset(client: RawClient) -> None:
    client.reset()


WAYS = [close, half_close, reset]


def load(server: LiveServer) -> int:
    found = server.json("/load")
    assert found["running"] + found["waiting"] + found["paused"] <= found["server_load"] + 4
    return int(found["server_load"])


def gone(server: LiveServer, others: int = 0) -> bool:
    """Whether only the others are left after a second."""
    return comes_within(GONE_S, lambda: load(server) <= others, server.process.pid)


def wait_for_load(server: LiveServer, num_open: int) -> None:
    until(lambda: load(server) == num_open, f"{num_open} are open")


@pytest.mark.parametrize("leave", WAYS)
def test_at_every_moment(server: LiveServer, leave: Callable[[RawClient], None]) -> None:
    baseline = used_blocks(server)
    with Neighbour(server):
        for moment in ("upload", "prefill", "decode", "whole", "ahead"):
            client = RawClient(server.url)
            match moment:
                case "upload":
                    client.send(request("POST", PATH, LONG)[:-20])
                case "prefill":
                    client.post(PATH, PROMPT)
                    wait_for_load(server, 2)  # the neighbour's and this one
                case "decode":
                    client.post(PATH, LONG)
                    assert b"data: " in client.peek(2000)
                case "whole":
                    client.post(PATH, WHOLE)
                    wait_for_load(server, 2)
                case "ahead":
                    client.send(request("POST", PATH, WHOLE) * 3)
                    wait_for_load(server, 2)
            leave(client)
            assert gone(server, others=1), f"{moment}: still there"
            client.socket.close()
    assert server.idle()
    assert used_blocks(server) == baseline
    assert "Traceback" not in server.log()


def test_in_the_queue(server: LiveServer) -> None:
    """Those that run go on; the one that waited is gone, the next one gets its turn."""
    running = [RawClient(server.url) for _ in range(4)]
    for client in running:
        client.post(PATH, {**LONG, "seed": 3, "max_tokens": 200})
        assert b"data: " in client.peek(300)
    waiting = [RawClient(server.url) for _ in range(3)]
    for client in waiting:
        client.post(PATH, LONG)
    until(lambda: server.json("/load")["waiting"] == 3, "three wait")
    for client, leave in zip(waiting, WAYS, strict=True):
        leave(client)
    assert gone(server, others=4)
    texts = {client.answer().body[-14:] for client in running}
    assert texts == {b"data: [DONE]\n\n"}
    assert server.idle()
    assert used_blocks(server) == 0


def test_around_the_end(server: LiveServer) -> None:
    """An answer of a few tokens, left before, while and after it is finished."""
    body = {"prompt": "a", "max_tokens": 3}
    with Neighbour(server):
        for number in range(60):
            client = RawClient(server.url)
            client.post(PATH, {**body, "stream": number % 2 == 0})
            time.sleep(number / 60 * 0.08)
            WAYS[number % 3](client)
            client.socket.close()
        assert gone(server, others=1)
    assert server.idle()
    assert used_blocks(server) == 0
    assert "Traceback" not in server.log()


CLIENT = """
import json, socket, sys, time
port, body = int(sys.argv[1]), sys.argv[2].encode()
head = b"POST /v1/completions HTTP/1.1\\r\\nHost: a\\r\\nContent-Type: application/json\\r\\n"
clients = []
for number in range(8):
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    clients.append(client)
if b'"stream": true' in body:
    clients[0].recv(1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("body", [LONG, WHOLE], ids=["stream", "whole"])
def test_a_killed_client(server: LiveServer, body: dict[str, Any]) -> None:
    """kill -9 of a process with eight requests: four run, four wait."""
    arguments = [sys.executable, "-c", CLIENT, str(server.http.base_url.port), json.dumps(body)]
    client = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    wait_for_load(server, 8)
    client.kill()
    assert gone(server)
    assert server.idle()
    assert used_blocks(server) == 0
    client.wait()
    client.stdout.close()


def test_no_file_is_left_open(server: LiveServer) -> None:
    process = psutil.Process(server.process.pid)
    before = process.num_fds()
    for number in range(150):
        client = RawClient(server.url)
        match number % 5:
            case 0:
                client.send(b"GET /hea")
            case 1:
                client.send(request("POST", PATH, LONG)[:-5])
            case 2:
                client.send(request("GET", "/health"))
            case 3:
                client.post(PATH, {**LONG, "max_tokens": 4})
            case _:
                client.send(b"\x00\x01\x02")
        WAYS[number % 3](client)
        client.socket.close()
    until(lambda: process.num_fds() <= before, "no file is left open")
    assert server.idle()
    assert used_blocks(server) == 0
