"""What every answer shares: names, the usage block, the account, and the shape of a renderer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from json.encoder import encode_basestring
from typing import Any, Protocol

from headrace.engine.generation import Request
from headrace.engine.outputs import Delta
from headrace.engine.speculation.account import SpeculationAccount
from headrace.engine.trace import SamplerTrace
from headrace.formats.tokenizer import Tokenizer
from headrace.server.job import Job

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

#: str → its JSON text, quotes included; not limited to ASCII.
json_text = encode_basestring


class Renderer(Protocol):
    """How the results of one request become an answer. One per request; streams change it."""

    @property
    def id(self) -> str | None:
        """The answer's name, where it has one."""
        ...

    def start(self) -> bytes:
        """What a stream begins with, before any token."""
        ...

    def chunk(self, job: Job, delta: Delta) -> bytes:
        """Events of one result; b"" when there is nothing to tell yet."""
        ...

    def end(self, jobs: Sequence[Job]) -> bytes:
        """What a stream ends with, after the last result of all jobs."""
        ...

    def whole(self, jobs: Sequence[Job]) -> bytes:
        """The answer of a request that does not stream; all jobs have ended well."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What an answer is made of besides results. id, created (Unix seconds), model, fingerprint:
    the same in all its chunks. include_usage: a last chunk with the token counts; continuous_usage:
    counts in every chunk. token_ids, tokens_as_ids: vLLM's return_token_ids and
    return_tokens_as_token_ids. trace: the sampler's stages go with every token."""

    id: str
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    created: int = field(default_factory=lambda: int(time.time()))
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    trace: bool = False


def new_id(prefix: str) -> str:
    """A name for an answer, such as "chatcmpl-…"."""
    return f"{prefix}-{secrets.token_hex(12)}"


def new_call_id() -> str:
    """A name for one tool call."""
    return f"call_{secrets.token_hex(12)}"


def data(event: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(event) + b"\n\n"


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def requests_of(jobs: Sequence[Job]) -> list[Request]:
    """The engine's requests of jobs that were queued."""
    return [job.request for job in jobs if job.request is not None]


def usage(
    jobs: Sequence[Job], num_output: int | None = None, num_reasoning: int = 0
) -> dict[str, Any]:
    """Token counts over all jobs and samples. num_output: output tokens told so far, when the
    engine may already be further; num_reasoning: of them, those before the end of reasoning."""
    requests = requests_of(jobs)
    prompt = sum(len(job.prompt) for job in jobs)
    if num_output is None:
        num_output = sum(len(g.token_ids) for request in requests for g in request.generations)
    accounts = [r.speculation_account for r in requests if r.speculation_account is not None]
    accepted = sum(account.num_accepted for account in accounts)
    drafted = sum(account.num_drafted for account in accounts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": num_output,
        "total_tokens": prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(r.num_cached_tokens for r in requests)},
        "completion_tokens_details": {
            "reasoning_tokens": num_reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def account(jobs: Sequence[Job]) -> dict[str, Any]:
    """Headrace's own part of an answer: the seed that repeats it, and the timings."""
    seeds = [request.seed for request in requests_of(jobs)]
    return {"seed": seeds[0] if seeds else None, "timings": timings(jobs)}


def timings(jobs: Sequence[Job]) -> dict[str, Any]:
    """The account of one HTTP request, llama-server's names where it has them; times in ms of the
    slowest job, counts of all."""
    metrics = [request.metrics() for request in requests_of(jobs)]
    if not metrics:
        return {}
    slowest = max(metrics, key=lambda m: m.total_s or 0.0)
    prompt_ms, predicted_ms = _ms(slowest.prefill_s), _ms(slowest.decode_s)
    computed = sum(m.num_prompt_tokens - m.num_cached_tokens for m in metrics)
    predicted = sum(m.num_output_tokens for m in metrics)
    result: dict[str, Any] = {
        "queue_ms": _ms(slowest.queue_s),
        "ttft_ms": _ms(slowest.time_to_first_token_s),
        "cache_n": sum(m.num_cached_tokens for m in metrics),
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_second": _rate(computed, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_second": _rate(predicted - len(metrics), predicted_ms),
        "computed_n": sum(m.num_computed_tokens for m in metrics),
        "preemptions": sum(m.num_preemptions for m in metrics),
    }
    if slowest.bound_s is not None and slowest.step_s:
        result["bound_ms"], result["step_ms"] = _ms(slowest.bound_s), _ms(slowest.step_s)
        result["bound_fraction"] = round(slowest.bound_s / slowest.step_s, 4)
    accounts = [m.speculation for m in metrics if m.speculation is not None]
    if accounts:
        result |= drafting(accounts)
    num_truncated = sum(job.num_truncated for job in jobs)
    if num_truncated:
        result["truncated_n"] = num_truncated
    if slowest.cache_note is not None:
        result["cache_note"] = slowest.cache_note
    return result


def drafting(accounts: Sequence[SpeculationAccount]) -> dict[str, Any]:
    """What speculation did for one HTTP request: llama-server's counts, and more of ours."""
    accepted_at = [account.accepted_at for account in accounts]
    tested = sum(account.num_tested for account in accounts)
    accepted = sum(account.num_accepted for account in accounts)
    gains = {}
    if len(accounts) == 1:  # of several there is no common one
        [account] = accounts
        gains = {"predicted_gain": account.predicted_gain, "measured_gain": account.measured_gain}
    return {
        "draft_n": sum(account.num_drafted for account in accounts),
        "draft_n_accepted": accepted,
        "drafting": {
            "rounds": sum(account.num_rounds for account in accounts),
            "tested": tested,
            "acceptance_rate": round(accepted / tested, 4) if tested else None,
            "accepted_per_position": [sum(n) for n in zip_longest(*accepted_at, fillvalue=0)],
            **{name: None if gain is None else round(gain, 3) for name, gain in gains.items()},
        },
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _rate(count: int, ms: float | None) -> float | None:
    return None if not ms or count <= 0 else round(count / ms * 1e3, 2)


def traces(steps: Sequence[SamplerTrace], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Sampler traces, each with the texts of the ids that it names."""
    return [
        {**step.to_dict(), "texts": {str(i): tokenizer.token_text(i) for i in sorted(step.ids())}}
        for step in steps
    ]


class Traces:
    """The sampler traces of streamed tokens: as many per choice as its tokens were told."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._told: dict[tuple[Job, int], int] = {}

    def next(self, job: Job, delta: Delta) -> list[dict[str, Any]]:
        """Traces of a delta's tokens."""
        assert job.request is not None
        trace = job.request.generations[delta.index].trace or []
        start = self._told.get((job, delta.index), 0)
        end = self._told[job, delta.index] = start + len(delta.token_ids)
        return traces(trace[start:end], self._tokenizer)
