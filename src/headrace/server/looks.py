"""Looks: questions to the engine's thread that take a while, spaced and shared.

All looks of one kind together take a small part of the engine's time, however often somebody asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.engine.core import Engine
from headrace.server.loop import EngineLoop

#: After a look of so many seconds the next one waits so many times as long.
SPACING = 20.0
T = TypeVar("T")


class Looks(Generic[T]):
    """Looks at one engine, on the asyncio thread. take: runs between two steps."""

    def __init__(self, loop: EngineLoop, take: Callable[[Engine], T]) -> None:
        self._loop = loop
        self._take_one = take
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None
        self._not_before_s = 0.0

    async def look(self) -> T:
        """One that is taken after this call. All that wait for their turn share the next one."""
        if self._next is None:
            self._next = asyncio.create_task(self._take())
        return await asyncio.shield(self._next)

    async def _take(self) -> T:
        async with self._turn:
            await asyncio.sleep(max(self._not_before_s - time.monotonic(), 0.0))
            self._next = None  # who comes from here on wants a later one
            look, took_s = await self._loop.ask(self._timed)
            self._not_before_s = time.monotonic() + SPACING * took_s
            return look

    def _timed(self, engine: Engine) -> tuple[T, float]:
        began = time.monotonic()
        return self._take_one(engine), time.monotonic() - began
