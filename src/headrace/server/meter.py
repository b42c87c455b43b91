"""StepMeter: what is counted while the engine runs. Written by the engine's thread only.

Per token it costs a call and a few dictionary look-ups: the tokens of one step whose predecessors
came in one step too, which is nearly all of them, are observed together.
"""

from __future__ import annotations

from collections import deque

from headrace.engine.account import StepRecord
from headrace.server.histogram import ITL_S, STEP_TOKENS, TTFT_S, Histogram
from headrace.server.job import Job

#: Steps that are remembered one by one.
MAX_RECENT = 64


class StepTotals:
    """Sums over steps since the start. bounded_seconds: of the steps whose limit is known; bound_s,
    operations and bytes are of these."""

    __slots__ = (
        "bound_s",
        "bounded_seconds",
        "count",
        "decode_tokens",
        "operations",
        "prefill_tokens",
        "read_bytes",
        "seconds",
        "written_bytes",
    )

    def __init__(self) -> None:
        self.count = self.decode_tokens = self.prefill_tokens = 0
        self.seconds = self.bounded_seconds = self.bound_s = 0.0
        self.operations = self.read_bytes = self.written_bytes = 0

    def add(self, record: StepRecord) -> None:
        self.count += 1
        self.decode_tokens += record.num_decode_tokens
        self.prefill_tokens += record.num_prefill_tokens
        self.seconds += record.step_s
        limit = record.limit
        if limit is not None:
            self.bounded_seconds += record.step_s
            self.bound_s += limit.bound_s
            self.operations += limit.operations
            self.read_bytes += limit.read_bytes
            self.written_bytes += limit.written_bytes

    def to_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


class StepMeter:
    """Counts tokens and the gaps between them. Times are time.monotonic() in seconds, of the end of
    the step in which a token was drawn.

    A time to first token counts from the request's arrival, before it was tokenized, once per
    request. A step that gives a sample k tokens counts as k gaps of a k-th each.
    """

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(TTFT_S)
        self.inter_token_latency = Histogram(ITL_S)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.step_time = Histogram(ITL_S)
        #: Of steps that computed no prompt token, and of the others.
        self.decode_steps, self.prefill_steps = StepTotals(), StepTotals()
        self.num_draft_tokens = self.num_failed_steps = 0
        self.recent: deque[StepRecord] = deque(maxlen=MAX_RECENT)
        self.num_prompt_tokens = 0  # of requests whose prompt is computed
        self.num_lookups = self.num_looked_up_tokens = (
            0  # of these, prompts that looked in the cache
        )
        self.num_hits = self.num_cached_tokens = 0  # of these, what was there
        self.num_output_tokens = 0
        self.num_streamed_tokens = 0
        self._now_s = 0.0
        self._gaps: dict[float, int] = {}

    def step(self, record: StepRecord) -> None:
        """A step has been run."""
        self.step_tokens.observe(record.num_decode_tokens + record.num_prefill_tokens)
        self.step_time.observe(record.step_s)
        (self.prefill_steps if record.num_prefill_tokens else self.decode_steps).add(record)
        self.num_draft_tokens += record.num_draft_tokens
        self.num_failed_steps += record.failed
        self.recent.append(record)

    def begin(self, now_s: float) -> None:
        """The tokens of a step follow."""
        self._now_s = now_s

    def tokens(self, job: Job, index: int, count: int) -> None:
        """Sample `index` of a job got `count` ≥ 1 tokens in this step."""
        times = job.token_times_s
        last = times[index]
        times[index] = self._now_s
        self.num_output_tokens += count
        if job.streams:
            self.num_streamed_tokens += count
        if not last:
            if not job.prompt_counted:
                drawn_s = None if job.request is None else job.request.first_token_s
                self.time_to_first_token.observe((drawn_s or self._now_s) - job.arrived_s)
                self.prompt(job)
        elif count == 1:
            self._gaps[last] = self._gaps.get(last, 0) + 1
        else:
            self.inter_token_latency.observe((self._now_s - last) / count, count)

    def prompt(self, job: Job) -> None:
        """A job's prompt is computed."""
        job.prompt_counted = True
        self.num_prompt_tokens += len(job.prompt)
        request = job.request
        if request is not None and request.reads_cache:
            self.num_lookups += 1
            self.num_looked_up_tokens += len(job.prompt)
            self.num_hits += request.num_cached_tokens > 0
            self.num_cached_tokens += request.num_cached_tokens

    def end(self) -> None:
        """The step's tokens are told."""
        for last, count in self._gaps.items():
            self.inter_token_latency.observe(self._now_s - last, count)
        self._gaps.clear()
