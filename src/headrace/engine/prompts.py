"""The forms in which callers write prompts, as (text, token ids). Pure; no engine.

"text"                                   the tokenizer adds what the model wants in front (BOS)
{"prompt": "text"}
{"prompt_token_ids": [1, 2, 3]}          taken as they are
[1, 2, 3]                                the same

A mapping may also have cache_salt: cached prefixes are shared between prompts of equal salt only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.params import SamplingParams
from headrace.errors import PromptError, UsageError

Prompt = str | Mapping[str, Any] | Sequence[int]


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt ready for the engine. text: None when only ids were given. cache_salt: see
    Engine.add."""

    token_ids: list[int]
    text: str | None
    cache_salt: str = ""


def as_prompt_list(prompts: object) -> list[Prompt]:
    """One prompt or many → a list. [1, 2] is one prompt of ids; [] is no prompt at all."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise PromptError(f"A prompt is text, ids or a mapping, not {type(prompts).__name__}.")
    if getattr(prompts, "ndim", 1) == 0:
        raise PromptError("A prompt is text, ids or a mapping, not a single number.")
    items = list(prompts)
    return [items] if items and all(_is_integer(item) for item in items) else items


def read_prompt(prompt: Prompt, encode: Callable[[str], list[int]]) -> TokenPrompt:
    """One prompt in any form. Raises PromptError naming what is wrong."""
    if isinstance(prompt, str):
        return TokenPrompt(encode(prompt), prompt)
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
        if unknown:
            raise PromptError(
                f"Unknown prompt field {sorted(map(str, unknown))[0]!r}; known are prompt, "
                f"prompt_token_ids and cache_salt."
            )
        salt = prompt.get("cache_salt", "")
        if not isinstance(salt, str):
            raise PromptError(f"The field cache_salt must be text, not {type(salt).__name__}.")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise PromptError(f"The field prompt must be text, not {type(text).__name__}.")
        if ids is not None:
            return TokenPrompt(_ids(ids), text, salt)
        if text is None:
            raise PromptError("A prompt mapping needs prompt or prompt_token_ids.")
        return TokenPrompt(encode(text), text, salt)
    return TokenPrompt(_ids(prompt), None)


def params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams | None]:
    """One SamplingParams for all, one for each, or None. Raises UsageError."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str | bytes | Mapping) or not isinstance(params, Sequence):
        raise UsageError(f"Sampling parameters are SamplingParams, not {type(params).__name__}.")
    if len(params) != count:
        raise UsageError(f"{len(params)} SamplingParams were given for {count} prompts.")
    for item in params:
        if not isinstance(item, SamplingParams):
            raise UsageError(f"Sampling parameters are SamplingParams, not {type(item).__name__}.")
    return list(params)


def _is_integer(item: object) -> bool:
    # An array has __index__, too, whatever its shape.
    return (
        not isinstance(item, bool) and hasattr(item, "__index__") and not getattr(item, "ndim", 0)
    )


def _ids(values: object) -> list[int]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise PromptError(f"prompt_token_ids must be a list of ids, not {type(values).__name__}.")
    ids = []
    for value in values:
        if not _is_integer(value):
            raise PromptError(f"prompt_token_ids holds {value!r}, which is no token id.")
        ids.append(operator.index(value))
    return ids
