"""Snapshots of a serving engine for those who watch it: made when somebody listens, shared by all.

Everything in one is read from what the engine's thread publishes anyway, beside its steps: it asks
the engine nothing and waits for nothing. So a number may be a step older than the one next to it.
Counters are totals since the start: whoever misses a snapshot loses nothing. No text, no token, no
salt and no name of a client is in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from headrace.engine.generation import Request
from headrace.engine.request import Status
from headrace.server.histogram import Histogram
from headrace.server.job import Job
from headrace.server.kv_states import block_states, state_counts

if TYPE_CHECKING:
    from headrace.server.door import Door

#: Seconds; snapshots are taken at multiples of it, so that listeners meet.
TICK_S = 0.25
MAX_LISTENERS = 64
#: Requests that are listed one by one.
MAX_REQUESTS = 64


class Snapshots:
    """The newest snapshot, and who waits for the next. Asyncio thread only."""

    def __init__(self) -> None:
        self.num_listeners = 0
        self.closed = False
        self._began_s = time.monotonic()
        self._taken_s = -1.0
        self._number = 0
        self._event = b""
        self._waiting: set[asyncio.Future[None]] = set()

    def recent(self, door: Door, *, draining: bool) -> bytes:
        """An event with a snapshot that is younger than half a tick."""
        now = time.monotonic()
        if now - self._taken_s > TICK_S / 2:
            self._taken_s = now
            self._number += 1
            head = {
                "object": "snapshot",
                "number": self._number,
                "time": round(time.time(), 3),
                "uptime_s": round(now - self._began_s, 3),
                "state": "draining" if draining else "serving",
                "model": door.settings.model_name,
            }
            self._event = event_of(head | snapshot_of(door, now))
        return self._event

    async def sleep(self, seconds: float, wake: asyncio.Future[None]) -> None:
        """Until the first tick after so many seconds, `close`, or the result of `wake`."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        due = -(-(now + seconds - TICK_S / 8) // TICK_S) * TICK_S
        timer = loop.call_later(due - now, _finish, wake)
        self._waiting.add(wake)
        try:
            await wake
        finally:
            timer.cancel()
            self._waiting.discard(wake)

    def close(self) -> None:
        """Ends all listening: the server stops."""
        self.closed = True
        for waiter in self._waiting:
            _finish(waiter)


def event_of(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# ---- what is in it ------------------------------------------------------------------------------


def snapshot_of(door: Door, now_s: float) -> dict[str, Any]:
    """now_s: time.monotonic()."""
    meter, drafts = door.loop.meter, door.speculation
    return {
        "requests": _requests(door, now_s),
        "tokens": {"prompt": meter.num_prompt_tokens, "output": meter.num_output_tokens},
        "steps": {
            "decode": meter.decode_steps.to_dict(),
            "prefill": meter.prefill_steps.to_dict(),
            "draft_tokens": meter.num_draft_tokens,
            "failed": meter.num_failed_steps,
            "running_s": round(door.loop.busy_for_s, 4),
        },
        "kv": [
            {
                "window": window,
                "block_bytes": size,
                "blocks": pool.num_blocks,
                **state_counts(block_states(pool)),
            }
            for pool, window, size in door.kv_pools
        ],
        "prefix": _prefix(door),
        "preemptions": door.num_preemptions,
        "speculation": {
            "rounds": drafts.num_rounds,
            "drafted": drafts.num_drafted,
            "tested": drafts.num_tested,
            "accepted": drafts.num_accepted,
        },
        "ttft": _histogram(meter.time_to_first_token),
        "itl": _histogram(meter.inter_token_latency),
    }


def _prefix(door: Door) -> dict[str, Any]:
    meter, stats = door.loop.meter, door.cache_stats
    nodes, tokens = door.tree_size
    return {
        "enabled": stats is not None,
        "nodes": nodes,
        "tokens": tokens,
        "requests": meter.num_lookups,
        "requests_hit": meter.num_hits,
        "looked_up_tokens": meter.num_looked_up_tokens,
        "hit_tokens": meter.num_cached_tokens,
        "evicted_tokens": 0 if stats is None else stats.num_evicted_tokens,
        "pins": door.num_pins,
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {
        "bounds": histogram.bounds,
        "counts": histogram.counts.copy(),
        "sum": round(histogram.total, 6),
    }


def _requests(door: Door, now_s: float) -> dict[str, Any]:
    running, waiting = door.num_running_waiting
    jobs = list(islice(chain(_those(door, has_begun=True), _those(door, has_begun=False)),
                       MAX_REQUESTS))  # fmt: skip
    return {
        "open": door.num_open,
        "running": running,
        "waiting": waiting,
        "paused": door.num_paused,
        "max_running": door.max_num_seqs,
        "max_open": door.max_open,
        "finished": dict(door.metrics.finished),
        "list": [_request(job, now_s) for job in jobs],
        "left_out": max(door.num_open - len(jobs), 0),
    }


def _those(door: Door, *, has_begun: bool) -> Iterator[Job]:
    """Jobs that have been admitted to the steps, or those that still wait for it; oldest first."""
    for job in door.jobs:
        request = job.request
        if (request is not None and request.scheduled_s is not None) is has_begun:
            yield job


def _request(job: Job, now_s: float) -> dict[str, Any]:
    """As far as it is known: one that the engine has not yet seen has its prompt only."""
    facts: dict[str, Any] = {
        "id": job.public_id,
        "state": "waiting",
        "prompt_tokens": len(job.prompt),
        "computed_tokens": 0,
        "cached_tokens": 0,
        "output_tokens": 0,
        "max_tokens": None,
        "samples": job.params.n,
        "age_s": round(now_s - job.arrived_s, 3),
        "queue_s": None,
        "ttft_s": None,
        "tok_per_s": None,
        "preemptions": 0,
    }
    request = job.request
    if request is None:
        return facts
    first = request.generations[0].sequence
    num_output = sum(len(generation.token_ids) for generation in request.generations)
    return facts | {
        "state": _state(request),
        "computed_tokens": first.num_computed_tokens,
        "cached_tokens": first.num_cached_tokens,
        "output_tokens": num_output,
        "max_tokens": first.max_num_tokens - first.num_prompt_tokens,
        "queue_s": _since(job.arrived_s, request.scheduled_s),
        "ttft_s": _since(job.arrived_s, request.first_token_s),
        "tok_per_s": _rate(num_output - job.params.n, request.first_token_s,
                           max(job.token_times_s)),
        "preemptions": request.num_preemptions,
    }  # fmt: skip


def _state(request: Request) -> str:
    statuses = [generation.sequence.status for generation in request.generations]
    if Status.RUNNING in statuses:
        return "prefill" if request.first_token_s is None else "decode"
    return "paused" if Status.PAUSED in statuses else "waiting"


def _since(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else round(end_s - start_s, 4)


def _rate(count: int, start_s: float | None, end_s: float) -> float | None:
    """Tokens per second after the first of each sample."""
    seconds = 0.0 if start_s is None else end_s - start_s
    return round(count / seconds, 2) if count > 0 and seconds > 0 else None
