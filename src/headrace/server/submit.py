"""The last common step of the generating routes: jobs in, a stream or a whole answer out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.params import SamplingParams
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.job import Job
from headrace.server.protocol.common import SamplingFields
from headrace.server.render.answer import AnswerOptions, Renderer, new_id
from headrace.server.respond import DEADLINE, StreamAnswer, whole_answer
from headrace.server.visit import visit_of
from headrace.structured.compiler import CompiledGrammar

#: How much more or less urgent a request may be (engine.admission.rank_of).
MAX_PRIORITY = 100
MAX_PROMPTS = 2048


def arrival(request: Request) -> float:
    """time.monotonic() at which the request's headers had come."""
    return visit_of(request).arrived_s


def make_jobs(
    prompts: Sequence[list[int]],
    params: SamplingParams,
    body: SamplingFields,
    arrived_s: float,
    texts: Sequence[str | None] | None = None,
    grammar: CompiledGrammar | None = None,
) -> list[Job]:
    """One job per prompt; choices are numbered prompt by prompt. grammar: what each answer has to
    follow. Raises ApiError."""
    priority = body.priority or 0
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise invalid(
            f"priority = {priority} is out of range: {-MAX_PRIORITY} … {MAX_PRIORITY}.", "priority"
        )
    if len(prompts) > MAX_PROMPTS:
        raise invalid(f"{len(prompts)} prompts in one request; at most {MAX_PROMPTS}.", "prompt")
    return [
        Job(
            prompt=ids,
            params=params,
            arrived_s=arrived_s,
            text=None if texts is None else texts[number],
            first_index=number * params.n,
            streams=bool(body.stream),
            priority=priority,
            constraint=None if grammar is None else grammar.start(),
        )
        for number, ids in enumerate(prompts)
    ]


def answer_options(prefix: str, door: Door, body: SamplingFields) -> AnswerOptions:
    """id and names of an answer, and what it shall carry."""
    settings, stream = door.settings, body.stream_options
    if stream is not None and not body.stream:
        raise invalid("stream_options is for requests with stream = true.", "stream_options")
    return AnswerOptions(
        id=new_id(prefix),
        model=body.model or settings.model_name,
        fingerprint=door.fingerprint,
        tokenizer=door.tokenizer,
        include_usage=bool(stream and (stream.include_usage or stream.continuous_usage_stats)),
        continuous_usage=bool(stream and stream.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        trace=bool(body.sampler_trace),
    )


def ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    """The response header that names the fields without effect."""
    return {"x-headrace-ignored": ", ".join(ignored)} if ignored else {}


async def answer(
    request: Request,
    door: Door,
    jobs: Sequence[Job],
    renderer: Renderer,
    body: SamplingFields,
    ignored: Sequence[str],
) -> Response:
    """Queues the jobs and answers. Raises HeadraceError (refused), ApiError or ClientLeft."""
    limit = _time_limit(door, body)
    visit = visit_of(request)
    for job in jobs:
        job.name = visit.name
    visit.flow = flow = door.open(jobs)
    visit.model = body.model or door.settings.model_name
    headers = ignored_header(ignored)
    if limit is not None:
        left = max(limit - (time.monotonic() - jobs[0].arrived_s), 0.0)
        timer = asyncio.get_running_loop().call_later(left, flow.cancel, DEADLINE)
        flow.on_end(timer.cancel)
    if body.stream:
        return StreamAnswer(flow, renderer, headers)
    return await whole_answer(flow, renderer, request.receive, headers)


def _time_limit(door: Door, body: SamplingFields) -> float | None:
    server = door.settings.request_timeout_s
    if body.timeout is None:
        return server
    if body.timeout <= 0:
        raise invalid(f"timeout = {body.timeout} is out of range: more than 0 s.", "timeout")
    return body.timeout if server is None else min(server, body.timeout)
