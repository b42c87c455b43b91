"""Saves of cached prefixes while the server serves: a piece between two steps at a time.

    engine's thread   collect ─┐  steps go on   ┌─ collect ─┐
    another thread             └─▶ write ───────┘           └─▶ write … finish (fsync)

So no stream waits longer than for one piece to be copied.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from headrace.engine.prefix.saved_write import SaveReport
from headrace.server.loop import EngineLoop
from headrace.server.threads import in_thread


class Saves:
    """Of one server, into one directory; on the asyncio thread."""

    def __init__(self, loop: EngineLoop, directory: Path) -> None:
        self._loop = loop
        self._directory = directory
        self._running: asyncio.Task[SaveReport] | None = None

    async def save(self) -> SaveReport:
        """What is cached when each piece is taken. Who asks while a save runs gets its report; who
        leaves does not stop it."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._save())
        return await asyncio.shield(self._running)

    async def settle(self) -> None:
        """Waits for a save that runs."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _save(self) -> SaveReport:
        saved = await self._loop.ask(lambda engine: engine.cache.saved_in(self._directory))
        save = await self._loop.ask(lambda _: saved.begin_save())
        if isinstance(save, SaveReport):
            return save
        try:
            while await self._loop.ask(lambda _: save.collect()):
                await in_thread(save.write)
        except OSError as error:
            return saved.give_up(save, error)
        except Exception:
            save.abandon()
            raise
        return await in_thread(partial(saved.finish, save))
