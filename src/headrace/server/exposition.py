"""What `GET /metrics` shows: the names, which are vLLM's where vLLM has the thing.

Everything is read when it is asked for; counting costs nothing more than the counts themselves.
docs/metrics.md says what each name means.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.server.cpu import OtherThreads
from headrace.server.histogram import Histogram

if TYPE_CHECKING:
    from headrace.server.context import Context
    from headrace.server.door import Door

#: Of features that do not exist here yet: 0, where dashboards expect them.
_ZEROS = (
    ("external_prefix_cache_queries", "Prompt tokens looked up in other caches (none exist yet)."),
    ("external_prefix_cache_hits", "Prompt tokens found in other caches (none exist yet)."),
)


class Exposition:
    """The metrics of one server, as text for a scraper. Asyncio thread only."""

    def __init__(self, context: Context) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(context))
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """(body, content type): OpenMetrics for who asks for it (header Accept), else Prometheus's
        text format."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Collector(Collector):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._prefix = context.settings.metrics_prefix + ":"
        self._labels = {"model_name": context.settings.model_name, "engine": "0"}
        self._other_threads = OtherThreads()

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering collects nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._process()
        door = self._context.door
        if door is None:
            return
        yield from self._state(door)
        yield from self._tokens(door)
        yield from self._savings(door)
        yield from self._requests(door)
        yield from self._limits(door)
        yield from self._price(door)

    # ---- kinds --------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, value: float, **labels: str) -> Metric:
        labels = {**self._labels, **labels}
        family = GaugeMetricFamily(self._prefix + name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return self._counters(name, text, (), {(): value})

    def _counters(
        self,
        name: str,
        text: str,
        label_names: tuple[str, ...],
        values: dict[tuple[str, ...], float],
    ) -> Metric:
        family = CounterMetricFamily(
            self._prefix + name, text, labels=[*self._labels, *label_names]
        )
        for labels, value in values.items():
            family.add_metric([*self._labels.values(), *labels], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, text, labels=list(self._labels))
        buckets, total = histogram.snapshot()
        family.add_metric(list(self._labels.values()), buckets, total)
        return family

    # ---- parts --------------------------------------------------------------------------------

    def _process(self) -> Iterator[Metric]:
        yield self._gauge("build_info", "Always 1.", 1, version=__version__)
        requests = self._context.http.requests
        yield self._counters(
            "http_requests",
            "HTTP requests by method, route and status; 499 = the client left.",
            ("method", "route", "status"),
            {(method, route, str(status)): n for (method, route, status), n in requests.items()},
        )

    def _state(self, door: Door) -> Iterator[Metric]:
        running, waiting = door.num_running_waiting
        pools = door.kv_blocks
        num_blocks = sum(pool.num_blocks for pool in pools)
        share = max((pool.num_held / pool.num_blocks for pool in pools), default=0.0)
        cached = max((pool.num_cached / pool.num_blocks for pool in pools), default=0.0)
        yield self._gauge("num_requests_running", "Sequences in the steps.", running)
        yield self._gauge("num_requests_waiting", "Requests that wait for a place.", waiting)
        yield self._gauge("num_requests_paused", "Whose reader is slow.", door.num_paused)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the KV cache that requests and pins hold, 1 = full.",
            share,
        )
        yield self._gauge(
            "kv_cache_cached_perc",
            "Share that nobody holds and that is kept for later requests.",
            cached,
        )
        held, idle = sum(p.num_held for p in pools), sum(p.num_cached for p in pools)
        yield self._gauge("kv_blocks_used", "Blocks that requests and pins hold.", held)
        yield self._gauge("kv_blocks_cached", "Blocks kept for later requests only.", idle)
        yield self._gauge("kv_blocks", "Blocks of the KV cache.", num_blocks)
        yield self._gauge("prefix_cache_pins", "Prefixes that are pinned.", door.num_pins)
        yield self._gauge(
            "cache_config_info",
            "How the KV cache is set up.",
            1,
            block_size=str(door.engine_config.block_size),
            cache_dtype=door.engine_config.kv_format.name.lower(),
            num_gpu_blocks=str(num_blocks),
            num_bytes=str(door.engine_config.pools.total_bytes),
            enable_prefix_caching=str(door.engine_config.prefix_caching),
        )

    def _tokens(self, door: Door) -> Iterator[Metric]:
        meter = door.loop.meter
        yield self._counter(
            "prompt_tokens", "Prompt tokens of computed prompts.", meter.num_prompt_tokens
        )
        yield self._counter("generation_tokens", "Tokens drawn.", meter.num_output_tokens)
        yield self._counter(
            "streamed_tokens", "Of these, for answers that stream.", meter.num_streamed_tokens
        )
        yield self._counter(
            "num_preemptions", "Sequences that lost their blocks to others.", door.num_preemptions
        )
        yield self._histogram(
            "time_to_first_token_seconds",
            "From the request's arrival, before tokenization, to its first token.",
            meter.time_to_first_token,
        )
        for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
            yield self._histogram(
                name, "Between two tokens of a sample.", meter.inter_token_latency
            )
        yield self._histogram(
            "iteration_tokens_total", "Tokens computed in a step.", meter.step_tokens
        )
        yield self._histogram("step_seconds", "Duration of a step.", meter.step_time)

    def _savings(self, door: Door) -> Iterator[Metric]:
        """What was not computed, and what was computed ahead."""
        meter, stats, drafts = door.loop.meter, door.cache_stats, door.speculation
        counts = (
            ("prefix_cache_queries", "Tokens of prompts that were looked up in the prefix cache.",
             meter.num_looked_up_tokens),
            ("prefix_cache_hits", "Of these, tokens that were not computed again.",
             meter.num_cached_tokens),
            ("prefix_cache_evicted_tokens", "Cached positions that went to make room for others.",
             0 if stats is None else stats.num_evicted_tokens),
            ("spec_decode_num_drafts", "Speculation: rounds with drafts.", drafts.num_rounds),
            ("spec_decode_num_draft_tokens", "Speculation: tokens drafted.", drafts.num_drafted),
            ("spec_decode_num_tested_tokens", "Speculation: drafts that were put to the test.",
             drafts.num_tested),
            ("spec_decode_num_accepted_tokens", "Speculation: drafted tokens that were accepted.",
             drafts.num_accepted),
            *((name, text, 0) for name, text in _ZEROS),
        )  # fmt: skip
        for name, text, value in counts:
            yield self._counter(name, text, value)
        accepted_at = list(drafts.accepted_at) or [0]
        yield self._counters(
            "spec_decode_num_accepted_tokens_per_pos",
            "Speculation: accepted tokens by their place in the draft.",
            ("position",),
            {(str(position),): count for position, count in enumerate(accepted_at)},
        )

    def _requests(self, door: Door) -> Iterator[Metric]:
        ended = door.metrics
        yield self._counters(
            "request_success",
            "Samples that ended, by reason; none is left out.",
            ("finished_reason",),
            {(reason,): count for reason, count in ended.finished.items()},
        )
        yield self._counter(
            "corrupted_requests", "Samples that met logits that are not finite.",
            ended.num_corrupted,
        )  # fmt: skip
        histograms = (
            ("e2e_request_latency_seconds", "From arrival to the end.", ended.e2e_latency),
            ("request_queue_time_seconds", "From arrival to the last admission.",
             ended.queue_time),
            ("request_prefill_time_seconds", "From the last admission to the first token.",
             ended.prefill_time),
            ("request_decode_time_seconds", "From the first to the last token.",
             ended.decode_time),
            ("request_inference_time_seconds", "From the last admission to the last token.",
             ended.inference_time),
            ("request_time_per_output_token_seconds", "Mean gap between a request's tokens.",
             ended.time_per_output_token),
            ("request_prompt_tokens", "Prompt tokens of a request.", ended.prompt_tokens),
            ("request_generation_tokens", "Output tokens of a sample.", ended.generation_tokens),
            ("request_max_num_generation_tokens", "Output tokens of a request's longest sample.",
             ended.max_generation_tokens),
            ("request_params_n", "Samples asked for.", ended.params_n),
            ("request_params_max_tokens", "max_tokens, where given.", ended.params_max_tokens),
        )  # fmt: skip
        for name, text, histogram in histograms:
            yield self._histogram(name, text, histogram)

    def _limits(self, door: Door) -> Iterator[Metric]:
        """Of all steps with a known limit."""
        account = door.account
        sums = (
            ("estimated_flops_per_gpu", "Operations that the steps needed; a multiply-add is two.",
             account.operations),
            ("estimated_read_bytes_per_gpu", "Bytes that the steps had to read from memory.",
             account.read_bytes),
            ("estimated_write_bytes_per_gpu", "Bytes that the steps had to write to memory.",
             account.written_bytes),
            ("step_bound_seconds", "The least time in which this machine could do the steps.",
             account.bound_s),
            ("step_measured_seconds", "The time that these steps took.", account.step_s),
        )  # fmt: skip
        for name, text, value in sums:
            yield self._counter(name, text, value)

    def _price(self, door: Door) -> Iterator[Metric]:
        loop = door.loop
        here = threading.get_native_id()
        parts: dict[tuple[str, ...], float] = {
            ("asyncio",): time.thread_time(),
            ("engine_outside",): loop.outside_cpu_s,
            ("step",): loop.step_cpu_s,
            ("other",): self._other_threads.cpu_s({here, loop.native_id}),
        }
        yield self._counters(
            "server_cpu_seconds",
            "CPU seconds by part: asyncio = HTTP; engine_outside = the engine's thread between "
            "steps; step = the same thread inside of steps; other = all other Python threads.",
            ("part",),
            parts,
        )
