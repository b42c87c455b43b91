"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import check_model, json_body, open_door
from headrace.server.conversation import template_options
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields, sampling_params, truncated
from headrace.server.formats import answer_grammar
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import parse
from headrace.server.render.chat import ChatRenderer
from headrace.server.submit import answer, answer_options, arrival, make_jobs


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
    grammar = await answer_grammar(door, body)
    ids = await prompt_ids(door, body)
    ids = truncated(ids, body.truncate_prompt_tokens, door.max_model_len)
    jobs = make_jobs([ids], params, body, arrival(request), grammar=grammar)
    renderer = ChatRenderer(options, jobs, params.n, num_top)
    return await answer(request, door, jobs, renderer, body, ignored)


async def prompt_ids(door: Door, body: ChatRequest) -> list[int]:
    """The conversation through the chat template. Raises HeadraceError."""
    template = door.template(body.chat_template)
    return await door.encode_chat(body.messages, template, **template_options(body))


def _num_top(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs = true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
