"""RequestMetrics and HttpMetrics: what is counted when something ends. Asyncio thread only.

With meter.py, which counts while the engine runs, this is all that `/metrics` shows; exposition.py
gives it its names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.engine.generation import Generation
from headrace.engine.outputs import RequestMetrics as Account
from headrace.engine.params import DefaultLimit, SamplingParams
from headrace.server.histogram import REQUEST_S, SAMPLES, Histogram, one_two_five
from headrace.server.job import Job

#: Why a sample can end; every reason is shown from the start.
FINISH_REASONS = ("stop", "length", "abort", "error")
#: Methods that are counted by name; a stranger may invent others.
METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


class RequestMetrics:
    """Of engine requests, one per prompt, at their end. max_model_len: the largest token count."""

    def __init__(self, max_model_len: int) -> None:
        sizes = one_two_five(max_model_len)
        self.finished = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self.num_corrupted = 0  # samples that met logits that are not finite
        self.e2e_latency = Histogram(REQUEST_S)
        self.queue_time = Histogram(REQUEST_S)
        self.prefill_time = Histogram(REQUEST_S)
        self.decode_time = Histogram(REQUEST_S)
        self.inference_time = Histogram(REQUEST_S)
        self.time_per_output_token = Histogram(REQUEST_S)
        self.prompt_tokens = Histogram(sizes)
        self.generation_tokens = Histogram(sizes)
        self.max_generation_tokens = Histogram(sizes)
        self.params_n = Histogram(SAMPLES)
        self.params_max_tokens = Histogram(sizes)

    def ended(self, job: Job) -> None:
        """A job has left the engine, well or not; or the engine did not take it."""
        request, params = job.request, job.params
        samples = request.generations if request is not None else []
        for sample in samples:
            reason = sample.finish_reason
            self.finished["error" if reason is None else reason.value] += 1
            self.num_corrupted += sample.is_corrupted
        if not samples:
            self.finished["error" if job.cancelled is None else "abort"] += 1
        self.prompt_tokens.observe(len(job.prompt))
        if job.pooling is None:
            self._draws(params, samples)
        if request is not None:
            self._times(request.metrics(), samples)

    def _draws(self, params: SamplingParams, samples: Sequence[Generation]) -> None:
        """What was asked for and what came."""
        self.params_n.observe(params.n)
        limit = params.max_tokens
        if limit is not None and not isinstance(limit, DefaultLimit):
            self.params_max_tokens.observe(limit)
        counts = [len(sample.token_ids) for sample in samples]
        for count in counts:
            self.generation_tokens.observe(count)
        self.max_generation_tokens.observe(max(counts, default=0))

    def _times(self, account: Account, samples: Sequence[Generation]) -> None:
        """Intervals that did not happen are not observed."""
        most = max((len(sample.token_ids) for sample in samples), default=0)
        parts = (
            (self.e2e_latency, account.total_s),
            (self.queue_time, account.queue_s),
            (self.prefill_time, account.prefill_s),
            (self.decode_time, account.decode_s),
        )
        for histogram, seconds in parts:
            if seconds is not None:
                histogram.observe(seconds)
        if account.prefill_s is not None:
            self.inference_time.observe(account.prefill_s + (account.decode_s or 0.0))
        if account.decode_s is not None and most > 1:
            self.time_per_output_token.observe(account.decode_s / (most - 1))


class HttpMetrics:
    """Of HTTP requests, at their end: (method, route, status) → how many."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()

    def ended(self, method: str, route: str, status: int) -> None:
        """route: the path's template, so that strangers cannot add to the list."""
        self.requests[method if method in METHODS else "other", route, status] += 1
