"""Fields that several requests share. Strict: a string is not a number, NaN is not either.

null means "not given" everywhere. Ranges are SamplingParams' business; unknown names are
`fields.py`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from headrace.server.errors import ApiError, invalid

#: Any integer of JSON that a C integer of 64 bits holds, unsigned.
Integer = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
_Item = TypeVar("_Item")


class _FirstErrorOnly(FailFast):
    """pydantic's, usable in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


#: A list that is refused at its first wrong item: a report on every one of half a million would
#: take seconds, and a gigabyte.
List = Annotated[list[_Item], _FirstErrorOnly()]
MAX_BIASES = 4096
MAX_FIELDS = 256


def _few(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"at most {MAX_BIASES} ids may have a bias")
    return value


def _wish(value: object) -> object:
    if not isinstance(value, str | bool | dict):
        raise ValueError("off, ngram, draft, true, false or an object was expected")
    return value


Speculation = Annotated[bool | str | dict[str, Any], BeforeValidator(_wish)]
Biases = Annotated[dict[str, float], BeforeValidator(_few)]


class RequestBody(BaseModel):
    """Base of every request. Fields it does not name are kept in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = Field(None, description="A served model's name; the only one by default.")


#: Characters of a salt: more than any random name needs.
MAX_SALT = 256
Salt = Annotated[str, Field(max_length=MAX_SALT)]


class CacheFields(RequestBody):
    """What a request has to do with the prefix cache."""

    cache_salt: Salt | None = Field(
        None, description="Cached prefixes are shared only between requests of the same salt."
    )
    cache_prompt: bool | None = Field(
        None, description="false: the prompt is computed anew, whatever is cached of it."
    )


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(CacheFields):
    """What SamplingParams takes, under OpenAI's, vLLM's and llama.cpp's names."""

    temperature: float | None = None
    top_p: float | None = None
    n: Integer | None = None
    stop: str | List[str] | None = None
    seed: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = Field(None, description="Token id → added to its logit.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Integer | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = Field(None, description="llama.cpp's name of the same.")
    min_tokens: Integer | None = None
    stop_token_ids: List[Integer] | None = None
    allowed_token_ids: List[Integer] | None = None
    bad_words: List[str] | None = Field(None, description="Words of one token that are banned.")
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Integer | None = None
    logprobs_mode: str | None = Field(None, description="raw (the model's own) or processed.")
    post_sampling_probs: bool | None = Field(None, description="true = logprobs_mode processed.")

    speculative: Speculation | None = Field(
        None,
        description="Who guesses tokens ahead: off, ngram or draft; true: the server's own choice, "
        "else ngram; or {method, num_draft_tokens, acceptance}.",
    )

    priority: Integer | None = Field(None, description="Lower is served earlier; 0 is usual.")
    truncate_prompt_tokens: Integer | None = Field(
        None, description="Keep so many last tokens of the prompt; -1: what the context holds."
    )
    timeout: float | None = Field(None, description="Seconds after which the request is ended.")
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    sampler_stages: List[str] | None = Field(None, description="Order of the sampler's stages.")
    sampler_trace: Integer | None = Field(
        None, description="N: per token and stage, the N best candidates and the entropy."
    )


_Body = TypeVar("_Body", bound=RequestBody)


def parse(kind: type[_Body], body: dict[str, Any]) -> _Body:
    """A JSON object as a request. Raises ApiError 400 naming the first wrong field."""
    if len(body) > MAX_FIELDS:
        raise invalid(f"The request has {len(body)} fields; at most {MAX_FIELDS} may be.")
    try:
        return kind.model_validate({name: v for name, v in body.items() if v is not None})
    except ValidationError as error:
        raise _refusal(error, body) from None


#: Where the fields belong that are sent to another route by mistake.
_HOMES = {
    "prompt": "/v1/completions",
    "messages": "/v1/chat/completions",
    "input": "/v1/responses and /v1/embeddings",
}


def _refusal(error: ValidationError, body: dict[str, Any]) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = [str(part) for part in first["loc"] if not str(part).startswith(("constrained-", "fn"))]
    name = path[0] if path else None
    more = error.error_count() - 1
    also = f" ({more} more like this)" if more else ""
    place = ".".join(path) or "body"
    match first["type"]:
        case "missing":
            hint = next((f"; {field} is for {home}" for field, home in _HOMES.items()
                         if field in body and field != name), "")  # fmt: skip
            message = f"{place} is missing{hint}.{also}"
        case "extra_forbidden":
            message = f"Unknown field {place!r}.{also}"
        case _:
            message = f"{place}: {first['msg'].removeprefix('Value error, ')}{also}"
    return invalid(message[:500], param=name)
