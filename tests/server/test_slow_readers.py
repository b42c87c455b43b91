"""Readers slower than the model: each has a bounded buffer, then its request pauses, keeps no place
and disturbs nobody; when it reads on, it gets exactly what a fast reader gets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from live_server import LiveServer, serving
from neighbour import Neighbour, used_blocks
from raw_http import RawClient

pytestmark = pytest.mark.models

PATH = "/v1/completions"
#: Some kilobytes per token, so that what the systems on both sides keep is soon full.
BODY: dict[str, Any] = {
    "prompt": "Once upon a time", "max_tokens": 110, "temperature": 0.8, "ignore_eos": True,
    "sampler_trace": 24,
}  # fmt: skip
NUM_READERS = 32
MAX_SEQS = 4


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
    alone = [server.json(PATH, body)["choices"][0]["text"] for body in bodies]
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    readers = [
        RawClient(server.url, receive_buffer=4096, timeout_s=120) for _ in range(NUM_READERS)
    ]
    for number, reader in enumerate(readers):
        reader.post(PATH, {**bodies[number % 4], "stream": True})

    end = time.monotonic() + 120
    while (load := server.json("/load"))["paused"] < NUM_READERS:
        assert time.monotonic() < end, load
        time.sleep(0.05)
    assert load["running"] == load["waiting"] == 0, "a paused request keeps a place"
    assert f"num_requests_paused{{" in server.get("/metrics").text  # noqa: F541
    with Neighbour(server):  # eight times as many requests are open as may run
        time.sleep(0.5)
    assert process.memory_info().rss - before < NUM_READERS * 4 << 20

    with ThreadPoolExecutor(NUM_READERS) as pool:
        answers = list(pool.map(lambda reader: reader.answer().body, readers))
    assert [text_of(answer) for answer in answers] == [alone[n % 4] for n in range(NUM_READERS)]
    for reader in readers:
        reader.socket.close()
    assert server.idle()
    assert used_blocks(server) == 0


def wait_for_paused(server: LiveServer) -> None:
    end = time.monotonic() + 60
    while server.json("/load")["paused"] < 1:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_paused_request_whose_reader_leaves_is_gone(server: LiveServer) -> None:
    with RawClient(server.url, receive_buffer=4096) as reader:
        reader.post(PATH, {**BODY, "stream": True})
        wait_for_paused(server)
        reader.socket.shutdown(1)
        assert server.idle(within_s=1.0)
    assert used_blocks(server) == 0


def test_a_paused_request_has_a_deadline(server: LiveServer) -> None:
    """Its time runs on; the reader finds the reason when it reads on."""
    with RawClient(server.url, receive_buffer=4096) as reader:
        reader.post(PATH, {**BODY, "stream": True, "timeout": 5})
        wait_for_paused(server)
        assert server.idle(within_s=10.0)
        last = reader.answer().body.decode().split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


def test_a_reader_that_never_reads_is_ended() -> None:
    with serving("smollm2-135m", "--max-model-len", "512", "--reader-timeout", "1") as server:
        with RawClient(server.url, receive_buffer=4096) as reader:
            reader.post(PATH, {**BODY, "stream": True})
            time.sleep(0.5)
            assert server.idle(within_s=20.0)
            assert b"[DONE]" not in reader.rest()
        assert used_blocks(server) == 0
