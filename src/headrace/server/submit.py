"""What the generating routes share: a body in, a stream or a whole answer out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import json_body, open_door
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.flow import Flow
from headrace.server.intake.common import Intake, Reader, Wishes
from headrace.server.respond import DEADLINE, StreamAnswer, whole_answer
from headrace.server.visit import visit_of

#: Longest limit of a request's own, seconds; a longer one is taken for this.
MAX_TIMEOUT_S = 7 * 86400.0
#: Of a list in a response header.
MAX_HEADER_ITEMS = 32
_MAX_LOOKED_AT = 1000


def arrival(request: Request) -> float:
    """time.monotonic() at which the request's headers had come."""
    return visit_of(request).arrived_s


def ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    """The response header that names the fields without effect."""
    return {"x-headrace-ignored": header_list(ignored, ", ")} if ignored else {}


def header_list(items: Sequence[str], separator: str) -> str:
    """Some texts, a client's own words among them, as the value of a header: each once, what a
    header cannot hold as "?", at most MAX_HEADER_ITEMS of them."""
    shown = list(dict.fromkeys(map(_plain, items[:_MAX_LOOKED_AT])))
    if len(shown) > MAX_HEADER_ITEMS:
        shown[MAX_HEADER_ITEMS:] = ["..."]
    return separator.join(shown)


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:200])


async def submit(request: Request, read: Reader) -> Response:
    """Reads a request's body, queues its jobs and answers. Raises HeadraceError (refused), ApiError
    or ClientLeft."""
    body = await json_body(request)
    door = open_door(request)
    intake = await read(door, body, arrival(request))
    headers = ignored_header(intake.ignored)
    if intake.warnings:
        headers["x-headrace-warning"] = header_list(intake.warnings, "; ")
    visit = visit_of(request)
    visit.flow = flow = enter(door, intake, visit.name)
    visit.model = intake.body.model or door.settings.model_name
    visit.answer_id = intake.renderer.id
    if intake.body.stream:
        return StreamAnswer(flow, intake.renderer, headers)
    return await whole_answer(flow, intake.renderer, request.receive, headers)


def enter(door: Door, intake: Intake, name: str) -> Flow:
    """Queues what was read, and starts the clock of its time limit. name: of the request, for logs.
    Raises HeadraceError (refused) or ApiError."""
    for job in intake.jobs:
        job.name = name
    limit = _time_limit(door, intake.body)
    flow = door.open(intake.jobs)
    if limit is not None:
        left = max(limit - (time.monotonic() - intake.jobs[0].arrived_s), 0.0)
        timer = asyncio.get_running_loop().call_later(left, flow.cancel, DEADLINE)
        flow.on_end(timer.cancel)
    return flow


def _time_limit(door: Door, body: Wishes) -> float | None:
    server = door.settings.request_timeout_s
    if body.timeout is None:
        return server
    if body.timeout <= 0:
        raise invalid(f"timeout = {body.timeout} is out of range: more than 0 s.", "timeout")
    wanted = min(body.timeout, MAX_TIMEOUT_S)
    return wanted if server is None else min(server, wanted)
