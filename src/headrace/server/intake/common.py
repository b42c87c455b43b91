"""Intake: a request that has been read and checked, ready to be queued."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.engine.params import DefaultLimit, SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.server.door import Door
from headrace.server.errors import ApiError, invalid
from headrace.server.fields import sampling_params, truncated
from headrace.server.job import Job
from headrace.server.protocol.common import SamplingFields
from headrace.server.render.answer import AnswerOptions, Renderer, new_id
from headrace.structured.compiler import CompiledGrammar

#: How much more or less urgent a request may be (engine.admission.rank_of).
MAX_PRIORITY = 100
MAX_PROMPTS = 2048
#: Ids in a request's lists, times its prompts.
MAX_LISTED_IDS = 1 << 18

#: As a request gives it.
Prompt = str | list[int]


class Wishes(Protocol):
    """What every generating request has, under whatever other fields."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def cache_prompt(self) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class Intake:
    """jobs: to be queued together; renderer: writes their answer. ignored: fields that were given
    and change nothing. warnings: sentences for the client."""

    jobs: list[Job]
    renderer: Renderer
    body: Wishes
    ignored: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


#: Reads the JSON object of one kind of request. The float: time.monotonic() of its arrival.
#: Raises ApiError or HeadraceError.
Reader = Callable[[Door, dict[str, Any], float], Awaitable[Intake]]


def prompts_of(value: str | list[Any], name: str) -> list[Prompt]:
    """One prompt or several → a list. name: of the field. Raises ApiError for none at all."""
    if isinstance(value, str):
        return [value]
    if not value:
        raise invalid(f"{name} is an empty list: it holds no text and no ids.", name)
    if len(value) > MAX_PROMPTS and not isinstance(value[0], int):
        raise invalid(f"{name} holds {len(value)} prompts; at most {MAX_PROMPTS} may.", name)
    return [value] if isinstance(value[0], int) else list(value)


async def encode_all(door: Door, prompts: Sequence[Prompt], add_special: bool) -> list[list[int]]:
    """Ids of every prompt; ids are taken as they are."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    found = iter(await door.texts.encode(texts, add_special=add_special))
    return [next(found) if isinstance(prompt, str) else prompt for prompt in prompts]


def wanted_params(
    door: Door,
    body: SamplingFields,
    *,
    max_tokens: int | DefaultLimit | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """See fields.sampling_params."""
    return sampling_params(
        body,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        encode=lambda text: door.texts.tokenizer.encode(text, add_special=False),
        own_speculation=door.engine_config.speculation.speculative,
    )


def make_jobs(
    door: Door,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    body: Wishes,
    arrived_s: float,
    *,
    grammar: CompiledGrammar | None = None,
    pooling: PoolingParams | None = None,
) -> list[Job]:
    """One job per prompt, cut to truncate_prompt_tokens; choices are numbered prompt by prompt.
    grammar: what each answer has to follow. pooling: a vector is wanted, no text. Raises ApiError.
    """
    priority = body.priority or 0
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise invalid(
            f"priority = {priority} is out of range: {-MAX_PRIORITY} … {MAX_PRIORITY}.", "priority"
        )
    if len(prompts) * params.num_listed_ids > MAX_LISTED_IDS:
        raise invalid(
            f"{len(prompts)} prompts with {params.num_listed_ids} ids in logit_bias and the lists "
            f"of ids are too much for one request; send the prompts in several.",
            "prompt",
        )
    jobs = []
    for number, ids in enumerate(prompts):
        kept = truncated(ids, body.truncate_prompt_tokens, door.max_model_len)
        jobs.append(
            Job(
                prompt=kept,
                params=params,
                arrived_s=arrived_s,
                first_index=number * params.n,
                streams=bool(body.stream),
                priority=priority,
                constraint=None if grammar is None else grammar.start(),
                num_truncated=len(ids) - len(kept),
                pooling=pooling,
                cache_salt=body.cache_salt or "",
                reads_cache=body.cache_prompt is not False,
            )
        )
    return jobs


def answer_options(prefix: str, door: Door, body: SamplingFields) -> AnswerOptions:
    """id and names of an answer, and what it shall carry."""
    settings, stream = door.settings, body.stream_options
    if stream is not None and not body.stream:
        raise invalid("stream_options is for requests with stream = true.", "stream_options")
    return AnswerOptions(
        id=new_id(prefix),
        model=body.model or settings.model_name,
        fingerprint=door.fingerprint,
        tokenizer=door.texts.tokenizer,
        include_usage=bool(stream and (stream.include_usage or stream.continuous_usage_stats)),
        continuous_usage=bool(stream and stream.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        trace=bool(body.sampler_trace),
    )


def check_served(door: Door, name: str | None) -> None:
    """Raises ApiError 404 for a model that is not served here."""
    served = door.settings.served_model_names
    if name is not None and name not in served:
        raise ApiError(
            404,
            f"The model {name[:200]!r} does not exist here; served is {', '.join(served)}.",
            param="model",
            code="model_not_found",
        )
