"""Responses: OpenAI's newer form of a chat. Text only, and nothing is stored."""

from __future__ import annotations

from typing import Any

from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields
from headrace.server.formats import Format, response_format
from headrace.server.intake.chat import chat_jobs
from headrace.server.intake.common import Intake, answer_options, check_served, wanted_params
from headrace.server.intake.response_items import chat_tool_choice, chat_tools, messages_of
from headrace.server.protocol.common import parse
from headrace.server.protocol.response import ResponseRequest
from headrace.server.render.response import ResponseRenderer
from headrace.server.tool_use import asked_tools

_LOGPROBS = "message.output_text.logprobs"


async def read_response(door: Door, values: dict[str, Any], arrived_s: float) -> Intake:
    """See intake.common.Reader."""
    body = parse(ResponseRequest, values)
    check_served(door, body.model)
    _check(body)
    ignored = ignored_fields(body)
    options = answer_options("resp", door, body)
    messages, passed_over = messages_of(body.input, body.instructions)
    num_top = _num_top(body)
    params = wanted_params(
        door,
        body,
        max_tokens=body.max_output_tokens,
        logprobs=num_top,
        prompt_logprobs=None,
    )
    if params.n != 1:
        raise invalid("n must be 1: a response is one answer.", "n")
    tools = asked_tools(
        chat_tools(body.tools), chat_tool_choice(body.tool_choice), body.parallel_tool_calls
    )
    jobs, form = await chat_jobs(
        door,
        body,
        params,
        arrived_s,
        messages=messages,
        tools=tools,
        template=door.texts.template(body.chat_template),
        variables=_variables(body),
        asked=_format(body),
    )
    renderer = ResponseRenderer(options, jobs, _echo(body), num_top, form)
    return Intake(jobs, renderer, body, [*ignored, *_without_effect(body), *passed_over])


def _check(body: ResponseRequest) -> None:
    limit = body.max_output_tokens
    if limit is not None and limit < 0:
        raise invalid(
            f"max_output_tokens = {limit} is out of range: 0 or more.", "max_output_tokens"
        )
    if body.store:
        raise invalid("store = true is not supported: nothing is stored here.", "store")
    if body.previous_response_id is not None:
        raise invalid(
            "previous_response_id is not supported: nothing is stored here. Send the whole "
            "conversation as input.",
            "previous_response_id",
        )


def _num_top(body: ResponseRequest) -> int | None:
    if body.top_logprobs is None and _LOGPROBS not in (body.include or ()):
        return None
    return body.top_logprobs or 0


def _format(body: ResponseRequest) -> Format | None:
    text = body.text
    if text is None:
        return None
    if text.verbosity not in (None, "medium"):
        raise invalid("text.verbosity is not supported; leave it out.", "text")
    return None if text.format is None else response_format(text.format, "text.format")


def _variables(body: ResponseRequest) -> dict[str, Any]:
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning is not None and body.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning.effort)
    return variables


def _without_effect(body: ResponseRequest) -> list[str]:
    names = [f"include {name[:80]}" for name in body.include or () if name != _LOGPROBS]
    if body.reasoning is not None:
        names += [f"reasoning.{name[:80]}" for name in body.reasoning.model_extra or ()]
    return names


def _echo(body: ResponseRequest) -> dict[str, Any]:
    """The part of a response that repeats the request."""
    extra = body.model_extra or {}
    format_ = None if body.text is None else body.text.format
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": extra.get("metadata") or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": None if body.reasoning is None else body.reasoning.effort,
            "summary": None,
        },
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": format_ or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": extra.get("user"),
    }
