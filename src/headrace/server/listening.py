"""EventStream: the answer of GET /events, one snapshot after another until somebody has enough."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.context import Context
from headrace.server.door import Door
from headrace.server.errors import ApiError
from headrace.server.snapshots import MAX_LISTENERS, event_of


class EventStream(Response):
    """interval_s: between two snapshots, at least; a reader who takes longer gets fewer. count: how
    many; 0 = no end. Raises ApiError 429 where too many listen already."""

    def __init__(self, context: Context, door: Door, interval_s: float, count: int) -> None:
        super().__init__()
        self._context = context
        self._door = door
        self._interval_s = interval_s
        self._count = count
        self._wake: asyncio.Future[None] | None = None
        self._left = False
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]
        if context.snapshots.num_listeners >= MAX_LISTENERS:
            raise ApiError(
                429, f"{MAX_LISTENERS} others listen already.", headers={"Retry-After": "5"}
            )
        context.snapshots.num_listeners += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = await self._snapshots(send)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            watcher.cancel()
            self._context.snapshots.num_listeners -= 1

    async def _snapshots(self, send: Send) -> bytes:
        """Sends them; what is to be sent last."""
        context, snapshots, number = self._context, self._context.snapshots, 0
        while not self._left:
            if snapshots.closed:
                return _end("The server is shutting down.")
            if not self._door.loop.alive:
                return _end("The engine has stopped; the server's log says why.")
            event = snapshots.recent(self._door, draining=context.draining)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            number += 1
            if number == self._count:
                break
            self._wake = asyncio.get_running_loop().create_future()
            if not self._left:
                await snapshots.sleep(self._interval_s, self._wake)
        return b""

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _end(reason: str) -> bytes:
    return event_of({"object": "end", "reason": reason})
