"""Chat: a conversation to answer, with tools, reasoning and formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engine.params import SamplingParams
from headrace.formats.chat_template import ChatTemplate
from headrace.server.conversation import template_options
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields
from headrace.server.formats import Format, answer_format, compiled
from headrace.server.intake.common import (
    Intake,
    Wishes,
    answer_options,
    check_served,
    make_jobs,
    wanted_params,
)
from headrace.server.job import Job
from headrace.server.parsing.answer import AnswerFormat
from headrace.server.parsing.tool_request import ToolRequest
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import parse
from headrace.server.render.chat import ChatRenderer
from headrace.server.tool_use import asked_tools, call_grammar, dialogue, reading


async def read_chat(door: Door, values: dict[str, Any], arrived_s: float) -> Intake:
    """See intake.common.Reader."""
    body = parse(ChatRequest, values)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    options = answer_options("chatcmpl", door, body)
    num_top = _num_top(body)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = wanted_params(
        door,
        body,
        max_tokens=limit,
        logprobs=num_top,
        prompt_logprobs=body.prompt_logprobs,
    )
    jobs, form = await chat_jobs(
        door,
        body,
        params,
        arrived_s,
        messages=body.messages,
        tools=asked_tools(body.tools, body.tool_choice, body.parallel_tool_calls),
        template=door.texts.template(body.chat_template),
        asked=answer_format(body),
        **template_options(body),
    )
    renderer = ChatRenderer(options, jobs, params.n, num_top, form)
    return Intake(jobs, renderer, body, ignored)


async def chat_jobs(
    door: Door,
    body: Wishes,
    params: SamplingParams,
    arrived_s: float,
    *,
    messages: Sequence[Mapping[str, Any]],
    tools: ToolRequest,
    template: ChatTemplate,
    asked: Format | None,
    **options: Any,
) -> tuple[list[Job], AnswerFormat]:
    """A conversation's one job, and how its answers are read. asked: what they must look like.
    options: of the template. Raises ApiError or HeadraceError."""
    talk = await dialogue(door, template, messages, tools)
    ids = await door.texts.encode_chat(talk.messages, talk.template, tools=talk.tools, **options)
    grammar = None if asked is None else await compiled(door, asked)
    form = reading(door, talk, ids, shaped=grammar is not None)
    if tools.enforced:
        grammar = await call_grammar(door, tools, form)
    return make_jobs(door, [ids], params, body, arrived_s, grammar=grammar), form


def _num_top(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs = true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
