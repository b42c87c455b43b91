"""A process that serves the dashboard alone: `headrace ui`. Knows no page."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import uvicorn
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from headrace.connection import ConnectionLimits, connection_type, watch_time
from headrace.errors import UsageError
from headrace.ui.app import PREFIX, Dashboard

#: A page takes a connection of its own while it is open, and a few more while it loads.
LIMITS = ConnectionLimits(reader_s=60.0, max_connections=512)


def serve(
    url: str,
    host: str,
    port: int,
    hosts: Collection[str],
    lab_dir: Path,
    told: Callable[[str], None],
) -> None:
    """Serves until SIGTERM or Ctrl-C. told: called with the address once it listens.

    Raises UsageError when the address cannot be bound.
    """
    listener = _bind(host, port)
    dashboard = Dashboard(url, hosts, lab_dir)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/":
            await RedirectResponse(PREFIX + "/", 307)(scope, receive, send)
        else:
            await dashboard(scope, receive, send)

    config = uvicorn.Config(
        app,
        http=connection_type(LIMITS, (PREFIX,)),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws_max_size=1 << 20,
    )

    async def run() -> None:
        server = _Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.end)
        async with dashboard.running():
            shown = f"[{host}]" if ":" in host else host
            told(f"http://{shown}:{listener.getsockname()[1]}{PREFIX}/")
            watching = asyncio.create_task(watch_time(server.server_state.connections))
            try:
                await server.serve(sockets=[listener])
            finally:
                watching.cancel()

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    asyncio.run(run())


class _Server(uvicorn.Server):
    """Signals are ours: the first ends it in order, the next does not wait."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The dashboard cannot listen on {host}:{port}: {reason}. "
            "Choose another --host or --port."
        ) from None
