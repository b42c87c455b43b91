"""Completions: one or several texts to go on with, or a gap to fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.params import DefaultLimit, SamplingParams
from headrace.formats.tokenizer import check_ids
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import MAX_SAMPLES, ignored_fields
from headrace.server.formats import answer_grammar
from headrace.server.intake.common import (
    Intake,
    Prompt,
    answer_options,
    check_served,
    encode_all,
    make_jobs,
    prompts_of,
    wanted_params,
)
from headrace.server.protocol.common import parse
from headrace.server.protocol.completion import CompletionRequest
from headrace.server.render.completion import CompletionRenderer

DEFAULT_MAX_TOKENS = DefaultLimit(16)


async def read_completion(door: Door, values: dict[str, Any], arrived_s: float) -> Intake:
    """See intake.common.Reader."""
    body = parse(CompletionRequest, values)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    options = answer_options("cmpl", door, body)
    keep = _keep(body)
    params = _params(door, body, keep)
    prompts = prompts_of(body.prompt, "prompt")
    grammar = await answer_grammar(door, body)
    if body.suffix:
        ids, stop_ids = await _around_gap(door, body, prompts, body.suffix)
        params = params.replace(stop_token_ids=[*params.stop_token_ids, *stop_ids])
    else:
        ids = await encode_all(door, prompts, body.add_special_tokens is not False)
    jobs = make_jobs(door, ids, params, body, arrived_s, grammar=grammar)
    if body.truncate_prompt_tokens is not None:
        prompts = [job.prompt for job in jobs]
    renderer = CompletionRenderer(
        options,
        jobs,
        num_choices=len(jobs) * params.n,
        echo=await _echo(door, prompts) if body.echo else None,
        num_top=body.logprobs,
        keep=keep,
    )
    return Intake(jobs, renderer, body, ignored, _warnings(door, ids))


def _params(door: Door, body: CompletionRequest, keep: int | None) -> SamplingParams:
    params = wanted_params(
        door,
        body,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=0 if keep is not None and body.logprobs is None else body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else body.prompt_logprobs,
    )
    return params if keep is None else params.replace(n=body.best_of)


async def _echo(door: Door, prompts: Sequence[Prompt]) -> list[str]:
    """What an echo repeats: the text as it was given, unless it came as ids or was cut. Raises
    PromptError for ids that are no tokens."""

    def text(prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        check_ids(prompt, door.texts.tokenizer)
        return door.texts.tokenizer.decode(prompt, skip_special=False)

    num_ids = sum(len(prompt) for prompt in prompts if not isinstance(prompt, str))
    return await door.texts.off_loop(num_ids, lambda: [text(prompt) for prompt in prompts])


async def _around_gap(
    door: Door, body: CompletionRequest, prompts: list[Prompt], suffix: str
) -> tuple[list[list[int]], tuple[int, ...]]:
    """Prompts that ask for what belongs between each text and the suffix; what ends such an
    answer. Raises ApiError."""
    gap = door.texts.gap_tokens
    if gap is None:
        raise invalid(
            "suffix needs a vocabulary with fill-in-the-middle tokens, and this model's has none.",
            "suffix",
        )
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise invalid(f"suffix and {name} do not go together.", name)
    after, *before = await encode_all(door, [suffix, *prompts], False)
    start = () if body.add_special_tokens is False else door.texts.tokenizer.info.prefix_ids
    return [gap.prompt(ids, after, start) for ids in before], gap.stop_ids


def _warnings(door: Door, prompts: list[list[int]]) -> list[str]:
    bos = door.texts.tokenizer.bos_id
    if door.texts.tokenizer.add_bos and any(ids[:2] == [bos, bos] for ids in prompts):
        return ["the prompt starts with two BOS tokens: its own and the model's"]
    return []


def _keep(body: CompletionRequest) -> int | None:
    """best_of: how many of its samples are returned; None = all that were drawn."""
    if body.best_of is None or body.best_of == (body.n or 1):
        return None
    if not (body.n or 1) <= body.best_of <= MAX_SAMPLES:
        raise invalid(f"best_of = {body.best_of} must be n … {MAX_SAMPLES}.", "best_of")
    if body.stream:
        raise invalid("best_of needs the whole answers: it cannot be streamed.", "best_of")
    return body.n or 1
