"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import check_model, json_body, open_door
from headrace.server.conversation import template_options
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields, sampling_params, truncated
from headrace.server.formats import answer_grammar
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import parse
from headrace.server.render.chat import ChatRenderer
from headrace.server.submit import answer, answer_options, arrival, make_jobs
from headrace.server.tool_use import asked_tools, call_grammar, dialogue, reading


async def chat_completions(request: Request) -> Response:
    """Answers a conversation."""
    body = parse(ChatRequest, await json_body(request))
    door = open_door(request)
    check_model(request, body.model)
    ignored = ignored_fields(body)
    options = answer_options("chatcmpl", door, body)
    num_top = _num_top(body)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(
        body,
        max_tokens=limit,
        logprobs=num_top,
        prompt_logprobs=body.prompt_logprobs,
        encode=lambda text: door.tokenizer.encode(text, add_special=False),
    )
    tools = asked_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    talk = await dialogue(door, door.template(body.chat_template), body.messages, tools)
    ids = await door.encode_chat(
        talk.messages, talk.template, tools=talk.tools, **template_options(body)
    )
    ids = truncated(ids, body.truncate_prompt_tokens, door.max_model_len)
    grammar = await answer_grammar(door, body)
    form = reading(door, talk, ids, shaped=grammar is not None)
    if tools.enforced:
        grammar = await call_grammar(door, tools, form)
    jobs = make_jobs([ids], params, body, arrival(request), grammar=grammar)
    renderer = ChatRenderer(options, jobs, params.n, num_top, form)
    return await answer(request, door, jobs, renderer, body, ignored)


def _num_top(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs = true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
