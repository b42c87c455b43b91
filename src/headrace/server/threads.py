"""Work that the asyncio thread must not do itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs work in a thread that a stopping process does not wait for."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(function: Callable[..., None], value: object) -> None:
        if not result.done():
            function(value)

    def run() -> None:
        told: tuple[Callable[..., None], object]
        try:
            told = result.set_result, work()
        except BaseException as error:
            told = result.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, *told)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await result
