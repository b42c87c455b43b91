"""Running a server: bind, load in the background, serve, stop in order.

bind ─▶ 503 while loading ─▶ serve ─▶ SIGTERM: refuse new, drain, cancel the rest, exit
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import uvicorn

from headrace.connection import (
    Connection,
    ConnectionLimits,
    connection_type,
    watch_time,
)
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel
from headrace.errors import HeadraceError, UsageError
from headrace.server.app import build_app
from headrace.server.context import Context
from headrace.server.door import Door
from headrace.server.errors import wording
from headrace.server.mounts import Crossroads, MakeMounted, Mounted
from headrace.server.respond import SHUTDOWN
from headrace.server.settings import ServeSettings
from headrace.server.threads import in_thread

_LOG = logging.getLogger("headrace.server")

#: Seconds for cancelled requests to say goodbye.
GOODBYE_S = 2.0
#: The asyncio thread gives the interpreter up to a finished step after so many seconds at most.
SWITCH_INTERVAL_S = 0.0005

#: Connections that may wait to be accepted.
BACKLOG = 2048

#: Bytes of an answer that the system may keep for a reader; more wait here, where they are seen.
SEND_BUFFER_BYTES = 64 << 10
#: Of one message on the web socket of a mounted application.
MAX_SOCKET_MESSAGE_BYTES = 1 << 20
#: Files that are not connections: the model, logs, libraries.
SPARE_FILES = 64

#: Opens a model and builds its engine; may take long, runs in a thread of its own.
Load = Callable[[], tuple[OpenModel, Engine]]


def serve(
    settings: ServeSettings,
    load: Load,
    *,
    template: str | None = None,
    mounts: Mapping[str, MakeMounted] | None = None,
) -> None:
    """Serves until SIGTERM or Ctrl-C. template: instead of the model's own, text or file. mounts:
    path ("/ui") → what makes the application that serves it; the API keys do not guard it.

    Raises UsageError when the address cannot be bound, and what `load` raises.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    listener = bind(settings.host, settings.port)
    context = Context(settings)
    app = build_app(context)
    mounted = {path: make(_own_url(listener)) for path, make in (mounts or {}).items()}
    limits = ConnectionLimits(
        reader_s=settings.reader_timeout_s, max_connections=most_connections(raise_file_limit())
    )
    config = uvicorn.Config(
        Crossroads(app, mounted) if mounted else app,
        http=connection_type(limits, tuple(mounted), wording),
        ws="websockets-sansio" if mounted else "none",
        ws_max_size=MAX_SOCKET_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # it costs more than it saves on a near network
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=5,
        backlog=BACKLOG,
    )
    run = _Run(context, _Server(config), load, template, app.openapi, mounted)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run.main(listener))
    app.state.observer.close()
    if run.error is not None:
        raise run.error
    if run.is_busy:  # a thread inside the native core does not survive the interpreter's end
        logging.shutdown()
        os._exit(0)


def raise_file_limit() -> int:
    """As many open files as the system grants this process."""
    try:
        import resource
    except ImportError:  # not on this system
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return min(soft, 1 << 16) if soft > 0 else 1 << 16


def most_connections(num_files: int) -> int:
    """How many of the process's open files may be connections; some, however few there are."""
    return max(num_files - SPARE_FILES, num_files // 4)


def bind(host: str, port: int) -> socket.socket:
    """A listening address, taken before anything is loaded."""
    listener = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What follows is inherited by every connection; a dead peer is noticed in a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no DNS could hold
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The server cannot listen on {host}:{port}: {reason}. Choose another --host or --port."
        ) from None
    return listener


class _Server(uvicorn.Server):
    """Signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Run:
    """One server's life."""

    def __init__(
        self,
        context: Context,
        server: _Server,
        load: Load,
        template: str | None,
        describe: Callable[[], object],
        mounted: Mapping[str, Mounted],
    ) -> None:
        self._context = context
        self._server = server
        self._load = load
        self._template = template
        self._describe = describe
        self._mounted = mounted
        self._stop: asyncio.Task[None] | None = None
        self._hurried = False
        self.is_busy = True  # a thread is loading, or saving
        self.error: BaseException | None = None

    async def main(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        host, port = listener.getsockname()[:2]
        listener.listen(BACKLOG)  # from here on clients connect; they read 503 while it loads
        url = f"http://{_shown(host)}:{port}"
        pages = {"pages": " ".join(f"{url}{path}/" for path in self._mounted)}
        _LOG.info("listening", extra={"url": url} | (pages if self._mounted else {}))
        loading = asyncio.create_task(self._open())
        watching = asyncio.create_task(watch_time(self._server.server_state.connections))
        try:
            async with contextlib.AsyncExitStack() as lives:
                for app in self._mounted.values():
                    await lives.enter_async_context(app.running())
                await self._server.serve(sockets=[listener])
        finally:
            loading.cancel()
            watching.cancel()
            if self._context.door is not None:
                await self._close(self._context.door)

    async def _close(self, door: Door) -> None:
        """Ends the engine's thread and saves; the next signal does not wait for that."""
        if door.saves is None:
            door.close()
            return
        self._hurried, self.is_busy = False, True
        saving = asyncio.create_task(_save(door))
        while not saving.done() and not self._hurried:
            await asyncio.sleep(0.02)
        if saving.done():
            self.is_busy = False
            saving.result()
        else:
            door.close()
            _LOG.warning("stopping: the save was not finished; the one before it stays")

    async def _open(self) -> None:
        settings, began = self._context.settings, time.monotonic()
        try:
            model, engine = await in_thread(self._load)
            door = Door(settings, model, engine, self._template)
            await in_thread(door.warm_up)
            await in_thread(door.texts.prepare_grammars)
            await in_thread(self._describe)  # the OpenAPI document takes 0.1 s, once
        except Exception as error:
            self.is_busy = False
            self.error = error
            self._context.load_error = str(error)
            if not isinstance(error, HeadraceError):
                _LOG.exception("the model could not be loaded")
            self._server.should_exit = True
            return
        self.is_busy = False
        door.start()
        self._context.door = door
        _LOG.info(
            "%s is ready, loaded in %.1f s: %s",
            settings.model_name, time.monotonic() - began, engine.config.describe(),
        )  # fmt: skip

    def _signalled(self) -> None:
        """The first signal drains; the second does not wait."""
        if self._stop is None:
            self._stop = asyncio.create_task(self._drain())
        else:
            self._hurried = True

    async def _drain(self) -> None:
        context = self._context
        context.draining = True
        door = context.door
        if door is not None and door.num_open:
            _LOG.info("stopping: %d requests may finish (%g s at most)", door.num_open,
                      context.settings.drain_timeout_s)  # fmt: skip
            await self._until_empty(door, context.settings.drain_timeout_s)
            if door.num_open:
                _LOG.warning("stopping: %d requests are ended", door.num_open)
                self._hurried = False
                door.cancel_all(SHUTDOWN)
                await self._until_empty(door, GOODBYE_S)
        else:
            _LOG.info("stopping")
        context.snapshots.close()
        await self._until_sent(GOODBYE_S)
        self._server.should_exit = True

    async def _until_sent(self, seconds: float) -> None:
        """Readers may take what is there; what they have not taken then is not waited for."""
        connections, end = self._server.server_state.connections, time.monotonic() + seconds

        def unsent() -> list[Connection]:
            return [c for c in connections if isinstance(c, Connection) and c.has_unsent]

        while unsent() and time.monotonic() < end and not self._hurried:
            await asyncio.sleep(0.02)
        for connection in unsent():
            connection.cut_off()

    async def _until_empty(self, door: Door, seconds: float) -> None:
        end = time.monotonic() + seconds
        while door.num_open and time.monotonic() < end and not self._hurried:
            await asyncio.sleep(0.02)


async def _save(door: Door) -> None:
    """Lets a save that somebody asked for end, then saves what is cached now."""
    assert door.saves is not None
    await door.saves.settle()
    door.close()
    await in_thread(door.save_prefixes)


def _own_url(listener: socket.socket) -> str:
    """Where this process reaches its own server."""
    host, port = listener.getsockname()[:2]
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{_shown(own)}:{port}"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
