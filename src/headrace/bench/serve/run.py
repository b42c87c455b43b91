"""A whole measurement: find the model, make the requests, warm up, load, sum up."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.bench.host import busy_cpu_s, host_conditions
from headrace.bench.serve.client import Client
from headrace.bench.serve.discovery import find_model, server_cpu_s
from headrace.bench.serve.driver import Driver, Progress
from headrace.bench.serve.failures import RequestFailed
from headrace.bench.serve.jobs import CHAT, BodyOptions, Job, Negotiation, make_jobs
from headrace.bench.serve.metrics import Summary, summarise
from headrace.bench.serve.plan import Wanted
from headrace.bench.serve.probe import LoopProbe, Overhead, overhead
from headrace.bench.serve.target import Target
from headrace.bench.serve.timeline import Record
from headrace.bench.serve.workload import make_workload
from headrace.errors import EndpointError

#: Told twice a second where a run stands.
Watch = Callable[[str], None]
_WATCH_S = 0.5


@dataclass(slots=True)
class Outcome:
    """What a run gave. summary: None when nothing ended. abandoned: requests that an interrupt
    found in flight; not_sent: those that it found waiting. server_cpu_s: CPU time of the server
    during the run (None = its /metrics do not say). others_share: of this machine's CPUs, what
    neither this client nor a server beside it took (None = not known)."""

    wanted: Wanted
    model: str
    conditions: dict[str, Any]
    records: list[Record]
    summary: Summary | None
    overhead: Overhead
    interrupted: bool = False
    abandoned: int = 0
    not_sent: int = 0
    server_cpu_s: float | None = None
    others_share: float | None = None


def run_load(wanted: Wanted, watch: Watch = lambda text: None) -> Outcome:
    """Measures. Ctrl-C ends a run early with what is known by then. Raises UsageError for requests
    that cannot be made, EndpointError for a server that answers none."""
    _allow_files(wanted.load.max_concurrency or wanted.data.count or 0)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(measure(Client(wanted.target), wanted, watch))


async def measure(client: Client, wanted: Wanted, watch: Watch) -> Outcome:
    """`run_load` inside a running event loop, through a given client."""
    try:
        watch(f"asking {wanted.target.url} for its model")
        model = await find_model(client, wanted.model)
        watch("making the requests")
        work = await make_workload(client, wanted, model)
        options = BodyOptions(
            wanted.endpoint, model.name, wanted.temperature, work.ignore_eos, wanted.extra_body
        )
        negotiation = Negotiation()
        driver = Driver(client, wanted.endpoint, negotiation, wanted.load.timeout_s)
        jobs = make_jobs(work.prompts, options, work.due_s)
        await _warm_up(driver, make_jobs(work.warm_up, options), wanted, watch)
        outcome = await _measured(driver, jobs, wanted, watch)
    finally:
        client.close()
    outcome.model = model.name
    outcome.conditions |= {
        "ignore_eos": work.ignore_eos,
        "warm_up_requests": len(work.warm_up),
        "shared_with_warm_up": work.shared,
        "exact_prompts": work.exact,
        "usage_asked": negotiation.option.name.lower(),
        "usage_refused": negotiation.refused,
    }
    return outcome


async def _warm_up(driver: Driver, jobs: Sequence[Job], wanted: Wanted, watch: Watch) -> None:
    """Requests that nobody counts. Raises EndpointError when not one of them succeeds."""
    if not jobs:
        return
    watch(f"warming up: {len(jobs)} requests")
    progress = Progress(len(jobs))
    await driver.run(jobs, wanted.load.max_concurrency, progress)
    if progress.failed == len(jobs):
        first = progress.records[0]
        ids = (
            first.failure in ("http_400", "http_422")
            and wanted.data.is_random
            and not wanted.data.text_prompts
            and wanted.endpoint != CHAT
        )
        raise EndpointError(
            f"{wanted.target.url}{wanted.endpoint} cannot be measured: {first.failure}: "
            f"{first.detail}"
            + (" (a server that takes no token ids needs --text-prompts)" if ids else "")
        )


async def _measured(driver: Driver, jobs: Sequence[Job], wanted: Wanted, watch: Watch) -> Outcome:
    """The run itself. A cancellation (Ctrl-C) ends it with what there is."""
    client = driver.client
    load = wanted.load
    client.effort.reset()
    if jobs and jobs[0].due_s is None:
        try:
            await client.warm(min(load.max_concurrency or len(jobs), len(jobs)))
        except RequestFailed as failure:
            raise EndpointError(f"{wanted.target.url}: {failure.detail}.") from None
    conditions = host_conditions()
    cpu_before = await server_cpu_s(client)
    busy_s, began_s = busy_cpu_s(), time.monotonic()
    progress = Progress(len(jobs))
    watcher = asyncio.create_task(_watch(progress, watch))
    interrupted = False
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in the middle would be a lag of ours
    try:
        with LoopProbe() as probe:
            try:
                await driver.run(jobs, load.max_concurrency, progress)
            except asyncio.CancelledError:
                interrupted = True
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
    finally:
        gc.enable()
        gc.unfreeze()
        watcher.cancel()
    busy_s, lasted_s = busy_cpu_s() - busy_s, time.monotonic() - began_s
    told = cpu_before is not None and not interrupted
    cpu_after = await server_cpu_s(client) if told else None
    records = progress.records
    summary = summarise(records, wanted.percentiles, wanted.targets) if records else None
    delays = [r.start_ns - r.scheduled_ns for r in records if r.scheduled_ns is not None]
    cost = overhead(probe, client.effort, summary.duration_s if summary else 0.0, delays)
    server_s = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
    return Outcome(
        wanted,
        "",
        conditions | {"most_concurrent": progress.most_running},
        records,
        summary,
        replace(cost, loop=type(asyncio.get_running_loop()).__module__.partition(".")[0]),
        interrupted,
        abandoned=progress.started - len(records),
        not_sent=len(jobs) - progress.started,
        server_cpu_s=server_s,
        others_share=_others_share(wanted.target, busy_s, lasted_s, cost.cpu_s, server_s),
    )


def _others_share(
    target: Target, busy_s: float, lasted_s: float, client_s: float, server_s: float | None
) -> float | None:
    if busy_s <= 0 or lasted_s <= 0 or (target.is_local and server_s is None):
        return None
    ours_s = client_s + (server_s or 0.0 if target.is_local else 0.0)
    # The system counts in ticks of 10 ms; a few of them are nobody's.
    return max(busy_s - ours_s - 0.03, 0.0) / (lasted_s * (os.cpu_count() or 1))


async def _watch(progress: Progress, watch: Watch) -> None:
    while True:
        done = len(progress.records)
        failed = f", {progress.failed} failed" if progress.failed else ""
        watch(f"{done} of {progress.total} done, {progress.running} in flight{failed}")
        await asyncio.sleep(_WATCH_S)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: it takes half the CPU time per chunk."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _allow_files(count: int) -> None:
    """Room for so many connections, as far as the system lets us: the usual limit is 1024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 64
    if soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
