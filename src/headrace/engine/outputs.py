"""What a caller gets back: whole results, stream deltas, and the account of a request.

The shapes follow vLLM's RequestOutput and CompletionOutput. Plain data; nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.engine.speculation.account import SpeculationAccount
from headrace.engine.trace import SamplerTrace


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability; rank 1 = most probable; text of the token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


#: Token id → Logprob: the chosen token and the requested number of top tokens.
LogprobEntry = dict[int, Logprob]


@dataclass(slots=True)
class RequestMetrics:
    """The account of one request. Times in seconds, from one monotonic clock.

    queue_s: arrival → last admission. prefill_s: last admission → first token (→ end where none is
    drawn). decode_s: first → last token of the slowest sample. time_to_first_token_s: arrival →
    first token. paused_s: of these, time in which it was paused.
    num_cached_tokens: prompt positions taken from the prefix cache; num_computed_tokens: positions
    computed for this request, repeats after preemption included. cache_note: why less of the
    cache was used than matched. step_s: time of all steps it took part in, with whomever;
    bound_s: the least that those steps could take (limits/step_limits.py). How close it ran to the
    limit is bound_s / step_s. None where no limits are known. speculation: of all samples together;
    None for a request that does not speculate.
    """

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    time_to_first_token_s: float | None = None
    total_s: float | None = None
    paused_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    cache_note: str | None = None
    bound_s: float | None = None
    step_s: float | None = None
    speculation: SpeculationAccount | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One sample. finish_reason: "stop" | "length" | "abort" | "error", None while running.

    token_ids: all output ids, a final stop id included. text: without special tokens and without
    the stop string, unless asked for. stop_reason: the stop string or stop id that matched; None
    for an end-of-text id of the model. error: what went wrong, with finish_reason "error"; why it
    was given up, with "abort", where the caller said so.
    trace: one sampler trace per step, when SamplingParams.trace asked for it.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    trace: list[SamplerTrace] | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request's result. prompt_logprobs[0] is None: nothing precedes the first token.
    embedding: float32 [E], of a request with PoolingParams that ended well.

    seed: the seed used, given or drawn at admission; with it the request can be repeated.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[LogprobEntry | None] | None = None
    embedding: npt.NDArray[np.float32] | None = None
    finished: bool = False
    num_cached_tokens: int = 0
    seed: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


@dataclass(slots=True)  # not frozen: one is made per token, and that would cost a microsecond
class Delta:
    """What one step added to one sample: a token, or several where drafts were accepted. The last
    delta of a sample, and only that, has a finish_reason. text may be empty (a character or a
    possible stop string is incomplete)."""

    request_id: int
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def extend(self, more: Delta) -> None:
        """Adds what the same step added next to the same sample; mutates this one only."""
        self.text += more.text
        self.token_ids += more.token_ids
        if more.logprobs is not None:
            self.logprobs = (self.logprobs or []) + more.logprobs
        self.finish_reason, self.stop_reason = more.finish_reason, more.stop_reason
        self.error = more.error
