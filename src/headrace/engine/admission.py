"""The door: everything that can be said against a request before it is queued. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.engine import sampler
from headrace.engine.config import EngineConfig
from headrace.engine.generation import TextStream, TokenText
from headrace.engine.params import DefaultLimit, SamplingParams
from headrace.errors import CapacityError, ContextLengthError, PromptError, UsageError

#: One level of priority is worth so many arrivals.
ARRIVALS_PER_PRIORITY = 64
#: Priorities beyond ± this count as this.
MAX_PRIORITY = 100
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the engine knows of a tokenizer. num_ids: ids 0 … num_ids−1 exist. eos_ids: the model's
    own end ids. new_stream: a fresh incremental detokenizer (argument: skip special tokens), None
    = no text. token_text: text of one id, for logprobs."""

    num_ids: int
    eos_ids: frozenset[int] = frozenset()
    new_stream: Callable[[bool], TextStream] | None = None
    token_text: TokenText | None = None

    def stream(self, params: SamplingParams) -> TextStream | None:
        """A detokenizer for one sample of a request, if there is text at all."""
        return None if self.new_stream is None else self.new_stream(params.skip_special_tokens)


def check_request(
    prompt_token_ids: list[int],
    params: SamplingParams,
    vocabulary: Vocabulary,
    config: EngineConfig,
    can_ever_fit: Callable[[int], bool],
) -> None:
    """Raises PromptError (empty, too long, ids out of range), UsageError (parameters) or
    CapacityError (can never fit the KV cache). can_ever_fit: whether one sequence alone can hold so
    many positions."""
    _check_prompt(prompt_token_ids, params, vocabulary.num_ids, config.max_model_len)
    params.validate_for(vocabulary.num_ids)
    if params.n > config.max_num_seqs:
        raise UsageError(
            f"n = {params.n} is larger than max_num_seqs = {config.max_num_seqs}: all samples of a "
            f"request run together."
        )
    if params.stop and vocabulary.new_stream is None:
        raise UsageError("stop strings need a tokenizer, and this engine has none.")
    num_prompt = len(prompt_token_ids)
    positions = max(max_num_tokens(num_prompt, params, config) - 1, num_prompt)
    if not can_ever_fit(positions):
        raise CapacityError(
            f"The request needs {positions} positions of KV cache and the whole cache "
            f"({config.pools.total_bytes:,} bytes) cannot hold them; raise kv_cache_memory or "
            f"lower max_tokens."
        )


def check_text_size(num_characters: int, max_model_len: int, max_token_bytes: int) -> None:
    """Refuses a text that no context could hold before it is tokenized. max_token_bytes: of the
    vocabulary's longest token. Raises ContextLengthError."""
    # Composing (NFC) makes at most 4 characters one; a character takes at least a byte.
    if num_characters > 4 * max_model_len * max_token_bytes:
        raise ContextLengthError(
            f"The context limit is {max_model_len} tokens, and the prompt has {num_characters:,} "
            f"characters, which cannot fit. Shorten it or raise max_model_len."
        )


def _check_prompt(ids: list[int], params: SamplingParams, num_ids: int, limit: int) -> None:
    num_prompt = len(ids)
    if num_prompt == 0:
        raise PromptError("The prompt is empty: it has no token to start from.")
    low, high = min(ids), max(ids)
    if low < 0 or high >= num_ids:
        raise PromptError(
            f"The prompt holds token id {low if low < 0 else high}, outside the vocabulary "
            f"0 … {num_ids - 1}."
        )
    wanted = params.max_tokens
    least = 1 if wanted is None or isinstance(wanted, DefaultLimit) else wanted
    if num_prompt + least > limit:
        asked = str(wanted) if least == wanted else "at least 1"
        raise ContextLengthError(
            f"The context limit is {limit} tokens; the prompt has {num_prompt} and {asked} more "
            f"were requested (max_tokens). Shorten the prompt, lower max_tokens or raise "
            f"max_model_len."
        )


def max_num_tokens(num_prompt: int, params: SamplingParams, config: EngineConfig) -> int:
    """Prompt + most output tokens of a request: max_tokens, at most to the end of the context."""
    limit = config.max_model_len
    return limit if params.max_tokens is None else min(limit, num_prompt + params.max_tokens)


def rank_of(arrival: int, priority: int) -> int:
    """Where a request stands among all that ever arrive; smaller = served first.

    The rank never changes, so a request is overtaken only by the next
    ARRIVALS_PER_PRIORITY · (difference of priorities) arrivals: nobody starves, without a clock.
    """
    level = min(max(priority, -MAX_PRIORITY), MAX_PRIORITY)
    return arrival + level * ARRIVALS_PER_PRIORITY


def seed_of(params: SamplingParams, engine_seed: int | None, request_id: int) -> int:
    """The request's own seed, else one derived from the engine's and the arrival, else a fresh one
    from the operating system."""
    if params.seed is not None:
        return params.seed
    if engine_seed is None:
        return sampler.new_seed()
    return _mix(engine_seed + (request_id + 1) * 0x9E3779B97F4A7C15)


def _mix(x: int) -> int:
    """SplitMix64's finaliser: spreads the bits of a counter over 64 bits."""
    x &= _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
