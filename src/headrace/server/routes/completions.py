"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.params import DefaultLimit
from headrace.server.context import check_model, json_body, open_door
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import MAX_SAMPLES, ignored_fields, sampling_params, truncated
from headrace.server.formats import answer_grammar
from headrace.server.protocol.common import parse
from headrace.server.protocol.completion import CompletionRequest
from headrace.server.render.completion import CompletionRenderer
from headrace.server.submit import answer, answer_options, arrival, make_jobs

DEFAULT_MAX_TOKENS = DefaultLimit(16)


async def completions(request: Request) -> Response:
    """Continues one or several prompts."""
    body = parse(CompletionRequest, await json_body(request))
    door = open_door(request)
    check_model(request, body.model)
    ignored = ignored_fields(body)
    options = answer_options("cmpl", door, body)
    keep = _keep(body)
    prompt_logprobs = body.logprobs if body.echo else body.prompt_logprobs
    params = sampling_params(
        body,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=0 if keep is not None and body.logprobs is None else body.logprobs,
        prompt_logprobs=prompt_logprobs,
        encode=lambda text: door.tokenizer.encode(text, add_special=False),
    )
    if keep is not None:
        params = params.replace(n=body.best_of)
    grammar = await answer_grammar(door, body)
    prompts = [
        truncated(await _ids(door, prompt, body), body.truncate_prompt_tokens, door.max_model_len)
        for prompt in prompt_list(body)
    ]
    jobs = make_jobs(prompts, params, body, arrival(request), grammar=grammar)
    renderer = CompletionRenderer(
        options,
        jobs,
        num_choices=len(jobs) * params.n,
        echo=[_text(door, p) for p in prompt_texts(body, prompts)] if body.echo else None,
        num_top=body.logprobs,
        keep=keep,
    )
    return await answer(request, door, jobs, renderer, body, ignored)


def prompt_list(body: CompletionRequest) -> list[str | list[int]]:
    """One prompt or several → a list. Raises ApiError for none at all."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt is an empty list: there is nothing to continue.", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def prompt_texts(body: CompletionRequest, ids: list[list[int]]) -> list[str | list[int]]:
    """What an echo repeats: the text as it was given, unless it came as ids or was cut."""
    if body.truncate_prompt_tokens is not None:
        return list(ids)
    return prompt_list(body)


def _text(door: Door, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else door.tokenizer.decode(prompt, skip_special=False)


async def _ids(door: Door, prompt: str | list[int], body: CompletionRequest) -> list[int]:
    if isinstance(prompt, str):
        return await door.encode(prompt, add_special=body.add_special_tokens is not False)
    return prompt


def _keep(body: CompletionRequest) -> int | None:
    """best_of: how many of its samples are returned; None = all that were drawn."""
    if body.best_of is None or body.best_of == (body.n or 1):
        return None
    if not (body.n or 1) <= body.best_of <= MAX_SAMPLES:
        raise invalid(f"best_of = {body.best_of} must be n … {MAX_SAMPLES}.", "best_of")
    if body.stream:
        raise invalid("best_of needs the whole answers: it cannot be streamed.", "best_of")
    return body.n or 1
