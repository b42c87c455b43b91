"""The dashboard as an ASGI application under a prefix, for `headrace ui` and `headrace serve --ui`.

dashboard = Dashboard("http://127.0.0.1:8000")
async with dashboard.running():     # inside the event loop that serves it
    await dashboard(scope, receive, send)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nicegui import Client, ui
from nicegui import app as pages_app
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from headrace.errors import UsageError
from headrace.ui.backend import Backend
from headrace.ui.door.guard import Guard
from headrace.ui.door.here import asks_from_here
from headrace.ui.door.junk import told_in_few_lines
from headrace.ui.door.sessions import Sessions
from headrace.ui.facts.lab_desk import LabDesk
from headrace.ui.facts.planning import Answers
from headrace.ui.registry import PAGES
from headrace.ui.shell import Frame, Page

PREFIX = "/ui"
#: Pages that may be open at once; each keeps some memory here.
MAX_OPEN_PAGES = 200
#: Where `headrace lab run` writes unless told otherwise.
LAB_DIR = Path("lab-results")
REPORT_CSP = "; ".join(
    (
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
#: A page that lost its connection may come back so long, seconds.
RECONNECT_S = 10.0


class Dashboard:
    """All pages over the server at url. hosts: further names by which it may be called. lab_dir:
    results of experiments. One per process: the framework below has one application."""

    def __init__(self, url: str, hosts: Collection[str] = (), lab_dir: Path = LAB_DIR) -> None:
        self._sessions = Sessions(url)
        self._lab = LabDesk(lab_dir)
        plans = Answers()
        outer = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        outer.get(PREFIX + "/lab-figure/{name}/{file}")(self._figure)
        outer.get(PREFIX + "/lab-report")(self._report)
        for page in PAGES:
            _register(page, self._sessions.visitor, self._lab, plans)
        ui.run_with(
            outer,
            mount_path=PREFIX,
            title="Headrace",
            dark=None,
            language="en-US",
            tailwind=False,
            binding_refresh_interval=None,
            reconnect_timeout=RECONNECT_S,
            show_welcome_message=False,
        )
        pages_app.add_exception_handler(404, _nothing_there)  # the framework's makes a page of each
        pages_app.config.quasar_config["brand"]["primary"] = "#0b62a8"
        self._guard = Guard(
            outer,
            self._sessions,
            PREFIX,
            [page.path for page in PAGES],
            hosts,
            _owner,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Between start and end of the pages' own life; ends their requests to the server."""
        async with pages_app.router.lifespan_context(pages_app):
            sweeping = asyncio.create_task(self._sessions.sweep())
            try:
                with told_in_few_lines():
                    yield
            finally:
                sweeping.cancel()
                await self._lab.stop()
                await self._sessions.close()

    async def _figure(self, name: str, file: str) -> Response:
        """A picture of an experiment's result, from the directory of results only."""
        data = await asyncio.to_thread(self._lab.figure, name, file)
        if data is None:
            return PlainTextResponse("There is no such picture.\n", 404)
        return Response(data, media_type="image/png", headers={"cache-control": "private"})

    async def _report(self, request: Request) -> Response:
        """All results as one page; it has no script, and may load nothing. For who may start work:
        it takes a process."""
        is_visitor = request.scope["headrace.backend"] is self._sessions.visitor
        if is_visitor and not asks_from_here(request):
            said = "The report is made for this machine itself, or after a log-in with a key.\n"
            return PlainTextResponse(said, 403)
        try:
            page = await self._lab.report()
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", 404)
        headers = {"content-security-policy": REPORT_CSP, "cache-control": "no-store"}
        return Response(page, media_type="text/html", headers=headers)


def _register(page: Page, visitor: Backend, lab: LabDesk, plans: Answers) -> None:
    async def show(request: Request) -> Response | None:
        if len(Client.instances) > MAX_OPEN_PAGES:
            ui.context.client.delete()  # else everyone who is refused would be one more
            return PlainTextResponse("Too many pages are open; close some.\n", 503)
        backend: Backend = request.scope["headrace.backend"]
        frame = Frame(page, backend, ui.context.client, lab, plans, backend is not visitor)
        with frame.build(PAGES):
            await page.build(frame)
        return None

    ui.page(page.path, title=f"{page.title} · Headrace")(show)


async def _nothing_there(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is no such page.\n", 404)


def _owner(page_id: str) -> Backend | None:
    client: Any = Client.instances.get(page_id)
    backend: Backend | None = client.request.scope.get("headrace.backend") if client else None
    return backend
