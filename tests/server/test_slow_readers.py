"""Readers slower than the model: each has a bounded buffer, then its request pauses, keeps no place
and disturbs nobody; when it reads on, it gets exactly what a fast reader gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from live_server import LiveServer, serving
from neighbour import Neighbour, used_blocks
from raw_http import RawClient
from slow_reader import BODY, PATH, paused_reader
from waiting import until

pytestmark = pytest.mark.models

NUM_READERS = 32
MAX_SEQS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("smollm2-135m", "--max-model-len", "512", "--max-num-seqs", str(MAX_SEQS)) as s:
        yield s


def text_of(stream: bytes) -> str:
    events = [event for event in stream.decode().split("\n\n") if event.startswith("data: {")]
    assert stream.endswith(b"data: [DONE]\n\n")
    return "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)


def test_slow_readers_pause_and_resume(server: LiveServer) -> None:
    bodies = [{**BODY, "seed": number} for number in range(4)]
    whole = [{**body, "stream": False} for body in bodies]
    alone = [server.json(PATH, body)["choices"][0]["text"] for body in whole]
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    readers = [
        RawClient(server.url, receive_buffer=4096, timeout_s=120) for _ in range(NUM_READERS)
    ]
    for number, reader in enumerate(readers):
        reader.post(PATH, bodies[number % 4])

    def load() -> dict[str, int]:
        found: dict[str, int] = server.json("/load")
        return found

    until(lambda: load()["paused"] == NUM_READERS, "all are paused", within_s=120)
    assert load()["running"] == load()["waiting"] == 0, "a paused request keeps a place"
    assert "num_requests_paused{" in server.get("/metrics").text
    with Neighbour(server):  # four times as many requests are open as may run
        pass
    assert process.memory_info().rss - before < NUM_READERS * 4 << 20

    with ThreadPoolExecutor(NUM_READERS) as pool:
        answers = list(pool.map(lambda reader: reader.answer().body, readers))
    assert [text_of(answer) for answer in answers] == [alone[n % 4] for n in range(NUM_READERS)]
    for reader in readers:
        reader.socket.close()
    assert server.idle()
    assert used_blocks(server) == 0


def test_a_paused_request_whose_reader_leaves_is_gone(server: LiveServer) -> None:
    with paused_reader(server) as reader:
        reader.socket.shutdown(1)
        assert server.idle(within_s=1.0)
    assert used_blocks(server) == 0


def test_a_paused_request_has_a_deadline(server: LiveServer) -> None:
    """Its time runs on; the reader finds the reason when it reads on."""
    for timeout_s in (2, 8, 32):  # long enough to be paused by then, on a slow machine too
        with RawClient(server.url, receive_buffer=4096) as reader:
            reader.post(PATH, {**BODY, "timeout": timeout_s})
            reader.peek(1)
            states = set()
            while not server.idle(within_s=0.0):
                states.add(server.json("/load")["paused"])
            last = reader.answer().body.decode().split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        if 1 in states:
            return
    raise AssertionError("it never paused")


def test_a_reader_that_never_reads_is_ended() -> None:
    with serving("smollm2-135m", "--max-model-len", "512", "--reader-timeout", "1") as server:
        with RawClient(server.url, receive_buffer=4096) as reader:
            reader.post(PATH, BODY)
            reader.peek(1)
            assert server.idle(within_s=20.0)
            assert b"[DONE]" not in reader.rest()
        assert used_blocks(server) == 0
