"""A reader who takes nothing: its request pauses and stays open until the reader goes on. Whoever
needs a request that lasts holds on to this one, not to a guess of how fast a machine is."""

from __future__ import annotations

from typing import Any

from live_server import LiveServer
from raw_http import RawClient
from waiting import until

PATH = "/v1/completions"
#: Some kilobytes per token, so that what the systems on both sides keep is soon full.
BODY: dict[str, Any] = {
    "prompt": "Once upon a time", "max_tokens": 110, "temperature": 0.8, "ignore_eos": True,
    "sampler_trace": 24, "stream": True,
}  # fmt: skip


def paused_reader(server: LiveServer, **fields: Any) -> RawClient:
    """Its stream has begun and is paused; `answer` reads it to its end."""
    reader = RawClient(server.url, receive_buffer=4096, timeout_s=120)
    before = server.json("/load")["paused"]
    reader.post(PATH, {**BODY, **fields})
    until(lambda: server.json("/load")["paused"] > before, "the request pauses")
    return reader
