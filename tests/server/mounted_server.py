"""A real server with a small application under /ui, for test_mounts.py."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, build_engine, open_model
from headrace.server.logs import set_up_logging
from headrace.server.run import serve
from headrace.server.settings import ServeSettings


class Echo:
    """Says where it is and what it was sent; tells the log when it lives."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        print("mounted: begins", file=sys.stderr, flush=True)
        yield
        print("mounted: ends", file=sys.stderr, flush=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._talk(receive, send)
            return
        body = f"{scope['path']} {self._url}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def _talk(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            if message["type"] == "websocket.connect":
                await send({"type": "websocket.accept"})
            else:
                await send({"type": "websocket.send", "text": message["text"].upper()})


def load() -> tuple[OpenModel, Engine]:
    model = open_model("smollm2-135m", offline=True)
    return model, build_engine(model, EngineOptions(kv_cache_memory="64MiB", max_model_len=256))


if __name__ == "__main__":
    set_up_logging("text")
    settings = ServeSettings(("small",), port=0, api_keys=("secret",), step_limits=False)
    serve(settings, load, mounts={"/ui": Echo})
