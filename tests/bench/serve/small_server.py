"""A small server on a real socket, in a thread; a coroutine of the test writes its answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: (server, path, body, writer) → writes an answer, or leaves without one.
Answer = Callable[["SmallServer", str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


@dataclass
class SmallServer:
    """url: where it listens. requests: every (path, body) it was sent. headers: of the last."""

    answer: Answer
    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")[:-2]
                self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                length = int(self.headers.get("content-length", 0))
                body = json.loads(await reader.readexactly(length)) if length else {}
                path = first.split()[1]
                if path == "/metrics":
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.requests.append((path, body))
                await self.answer(self, path, body, writer)
                await writer.drain()
                if writer.is_closing():
                    break
        writer.close()


@contextlib.contextmanager
def serving(answer: Answer, certificate: Path | None = None) -> Iterator[SmallServer]:
    """Listens on 127.0.0.1 while it is open. certificate: a file with key and certificate, for
    TLS."""
    server = SmallServer(answer)
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        tls = None
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
        server.url = (
            f"{'https' if tls else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        )
        ready.set()
        async with listener:
            await stop.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
