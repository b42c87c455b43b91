"""Feed: one reader of a server's snapshots for all pages of a session.

It starts with the first page that follows and stops with the last. Knows nothing of what snapshots
say but that counters start anew when the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import EndpointError

#: Seconds between two snapshots.
INTERVAL_S = 0.5
#: What a page shows at most of the past, seconds.
WINDOW_S = 120.0
#: After a failure it is tried again so much later, seconds.
RETRY_S = 2.0

Snapshot = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class News:
    """new: snapshots since the last news, oldest first; at first those of the last two minutes.
    problem: why there are none now, one sentence. restarted: what was shown before is of another
    life of the server."""

    new: tuple[Snapshot, ...]
    problem: str | None = None
    restarted: bool = False


@contextlib.contextmanager
def understood(what: str) -> Iterator[None]:
    """Where a server's values are read that it may not have: raises EndpointError, one sentence."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise EndpointError(
            f"The server's {what} have a form that is not known here; are both of one version?"
        ) from None


class Feed:
    """The snapshots of one server. events: opens its stream, with the seconds between two."""

    def __init__(self, events: Callable[[float], AsyncGenerator[dict[str, Any], None]]) -> None:
        self._events = events
        self._kept: deque[Snapshot] = deque()
        self._life = 0  # of the server, counted by us
        self._number = 0  # of the newest snapshot, counted by us
        self._problem: str | None = None
        self._reader: asyncio.Task[None] | None = None
        self._num_followers = 0
        self._turned = asyncio.Event()

    async def follow(self) -> AsyncGenerator[News, None]:
        """News as they come, until the iterator is closed."""
        self._num_followers += 1
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        life, number, problem = self._life, self._number - len(self._kept), self._problem
        first = True
        try:
            while True:
                if life != self._life:
                    number = self._number - len(self._kept)
                fresh = min(self._number - number, len(self._kept))
                if fresh or problem != self._problem or first:
                    new = tuple(self._kept)[len(self._kept) - fresh :]
                    yield News(new, self._problem, life != self._life)
                    first = False
                    life, number, problem = self._life, number + fresh, self._problem
                    continue
                await self._turned.wait()
        finally:
            self._num_followers -= 1
            if not self._num_followers and self._reader is not None:
                self._reader.cancel()
                self._reader = None

    async def _read(self) -> None:
        while True:
            try:
                events = self._events(INTERVAL_S)
                async with contextlib.aclosing(events):
                    async for event in events:
                        with understood("snapshots"):
                            if event.get("object") == "snapshot":
                                self._take(event)
                self._tell("The server has stopped.")
            except EndpointError as error:
                self._tell(str(error))
            await asyncio.sleep(RETRY_S)

    def _take(self, snapshot: Snapshot) -> None:
        if self._kept and snapshot["uptime_s"] < self._kept[-1]["uptime_s"]:
            self._kept.clear()
            self._life += 1
        self._kept.append(snapshot)
        while snapshot["time"] - self._kept[0]["time"] > WINDOW_S:
            self._kept.popleft()
        self._number += 1
        self._tell(None)

    def _tell(self, problem: str | None) -> None:
        self._problem = problem
        self._turned.set()
        self._turned = asyncio.Event()
