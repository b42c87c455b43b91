"""From request fields to SamplingParams, and the fate of every field that has none.

known        SamplingParams, or the route's own
NEUTRAL      cannot change the result: ignored, and named in the header x-headrace-ignored
UNSUPPORTED  would change it: a 400 that names the field, unless it is at its off value
anything else: a 400 with the nearest known name
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.params import DefaultLimit, SamplingParams
from headrace.engine.speculation.choice import Speculative
from headrace.server.errors import invalid
from headrace.server.protocol.common import RequestBody, SamplingFields

MAX_SAMPLES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256
#: trace · max_tokens · n: a candidate of a trace takes some hundred bytes until the answer is sent.
MAX_TRACED = 1 << 14

#: Bookkeeping of other services, and settings of features that are off or that change no token.
NEUTRAL = frozenset({
    "user", "metadata", "service_tier", "store", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "request_id", "id_slot", "kv_transfer_params", "timings_per_token",
    "mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "xtc_threshold", "dynatemp_exponent",
})  # fmt: skip
#: Field → the values with which it does nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "dry_multiplier": (0, 0.0),
    "xtc_probability": (0, 0.0),
    "dynatemp_range": (0, 0.0),
    "repeat_last_n": (-1,),  # the penalty looks at everything, as vLLM's does
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "echo": (False,),
    "return_progress": (False,),
    "include_reasoning": (True,),
    "spaces_between_special_tokens": (True,),
    "logprob_token_ids": ([],),
    "n_probs": (0,),
    "samplers": (),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none",),
    "verbosity": ("medium",),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "logits_processors": ([],),
    "truncation": ("disabled",),
    "add_special_tokens": (False,),  # of a conversation: its template has them
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
}


#: One thing under the names of three routes.
_LENGTHS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


def ignored_fields(body: RequestBody) -> list[str]:
    """Names of neutral fields that were given. Raises ApiError for unsupported or unknown ones."""
    ignored = []
    for name, value in (body.model_extra or {}).items():
        if name in NEUTRAL:
            ignored.append(name)
        elif name in UNSUPPORTED:
            if value not in UNSUPPORTED[name]:
                raise invalid(f"The field {name} is not supported; leave it out.", name)
            ignored.append(name)
        else:
            name = name[:80]  # comparing long texts takes long
            known = type(body).model_fields
            near = [other for other in _LENGTHS if name in _LENGTHS and other in known]
            if name in _SPECULATION and "speculative" in known:
                near = [f'"speculative": {{"{name}": …}}']
            near = near or difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise invalid(f"Unknown field {name!r}.{hint}", name)
    return ignored


def sampling_params(
    body: SamplingFields,
    *,
    max_tokens: int | DefaultLimit | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    encode: Callable[[str], list[int]],
    own_speculation: Speculative,
) -> SamplingParams:
    """OpenAI's defaults, the request's values. encode: text → ids without BOS, for bad_words.
    own_speculation: the server's. Raises ApiError or UsageError."""
    given: dict[str, Any] = {
        name: value for name in _PLAIN if (value := getattr(body, name)) is not None
    }
    if body.repeat_penalty is not None:
        given.setdefault("repetition_penalty", body.repeat_penalty)
    if body.post_sampling_probs:
        given.setdefault("logprobs_mode", "processed")
    if body.sampler_stages is not None:
        given["stages"] = body.sampler_stages
    if body.sampler_trace is not None:
        given["trace"] = body.sampler_trace
    if body.bad_words:
        given["banned_token_ids"] = _banned(body.bad_words, encode)
    if body.speculative is not None:
        given |= _speculation(body.speculative, own_speculation)
    if given.get("n", 1) > MAX_SAMPLES:
        raise invalid(f"n = {given['n']} is out of range: 1 … {MAX_SAMPLES}.", "n")
    _check_stops(given.get("stop", ()))
    top = "top_logprobs" if "top_logprobs" in type(body).model_fields else "logprobs"
    for name, number in ((top, logprobs), ("prompt_logprobs", prompt_logprobs)):
        if number is not None and not 0 <= number <= MAX_TOP_LOGPROBS:
            raise invalid(f"{name} = {number} is out of range: 0 … {MAX_TOP_LOGPROBS}.", name)
    params = SamplingParams(
        **given, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )
    _check_trace(params)
    return params


def _check_trace(params: SamplingParams) -> None:
    if not params.trace:
        return
    if params.max_tokens is None or params.trace * params.max_tokens * params.n > MAX_TRACED:
        raise invalid(
            f"sampler_trace · max_tokens · n must be at most {MAX_TRACED:,}; lower one of them.",
            "sampler_trace",
        )


#: Fields that SamplingParams has under the same name.
_PLAIN = (
    "temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty",
    "logit_bias", "top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens",
    "stop_token_ids", "allowed_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "logprobs_mode",
)  # fmt: skip


def _speculation(wish: bool | str | dict[str, Any], own: Speculative) -> dict[str, Any]:
    """Its fields of SamplingParams, which checks their values. own: what `true` means, unless that
    is off. Raises ApiError."""
    if wish is False:
        return {"speculative": Speculative.OFF.value}
    wanted = (Speculative.NGRAM if own is Speculative.OFF else own).value
    if wish is True:
        return {"speculative": wanted}
    if isinstance(wish, str):
        return {"speculative": wish}
    for name in wish:
        if name not in _SPECULATION:
            raise invalid(
                f"speculative.{name[:80]} is unknown: {', '.join(_SPECULATION)}.", "speculative"
            )
    given = {_SPECULATION[name]: value for name, value in wish.items() if value is not None}
    return {"speculative": wanted, **given}


#: What an object `speculative` may hold → the field of SamplingParams.
_SPECULATION = {
    "method": "speculative",
    "num_draft_tokens": "num_draft_tokens",
    "acceptance": "acceptance",
}


def _check_stops(stop: str | Sequence[str]) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid(f"stop holds {len(stops)} strings; at most {MAX_STOP_STRINGS} may.", "stop")
    if any(len(text) > MAX_STOP_CHARACTERS for text in stops):
        raise invalid(f"A stop string is longer than {MAX_STOP_CHARACTERS} characters.", "stop")


def _banned(words: list[str], encode: Callable[[str], list[int]]) -> list[int]:
    """Ids of words that are one token, alone or behind a space."""
    if len(words) > MAX_BAD_WORDS:
        raise invalid(f"bad_words holds {len(words)} words; at most {MAX_BAD_WORDS}.", "bad_words")
    banned: list[int] = []
    for word in words:
        found = []
        if len(word) <= MAX_BAD_WORD_CHARACTERS:
            found = [ids[0] for ids in (encode(word), encode(" " + word)) if len(ids) == 1]
        if not found:
            raise invalid(
                f"bad_words holds {word[:40]!r}, which is more than one token; only words of one "
                f"token can be banned.",
                "bad_words",
            )
        banned += found
    return banned


def truncated(ids: list[int], wanted: int | None, max_model_len: int) -> list[int]:
    """truncate_prompt_tokens: the last so many ids; −1 = what the context holds with one more."""
    if wanted is None:
        return ids
    if wanted < 1 and wanted != -1:
        raise invalid(
            f"truncate_prompt_tokens = {wanted} is out of range: 1 or more, or -1.",
            "truncate_prompt_tokens",
        )
    keep = max_model_len - 1 if wanted == -1 else wanted
    return ids[-keep:]
