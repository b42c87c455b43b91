"""Door: how requests get into the engine of a loaded model and their results come back out.

Lives on the asyncio thread; knows no routes and no HTTP. Its `texts` make the prompts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial

from headrace import __version__
from headrace.engine.account import StepAccount
from headrace.engine.config import EngineConfig
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel
from headrace.engine.params import SamplingParams
from headrace.engine.pools import BlockPool
from headrace.engine.prefix.inspection import TreeLook
from headrace.engine.prefix.tree import CacheStats
from headrace.engine.speculation.account import SpeculationAccount
from headrace.errors import HeadraceError, QueueFullError, UsageError
from headrace.limits.step_limits import StepLimits, limits_of
from headrace.server.cache_look import CacheLook, PoolUse, pool_use, take_look
from headrace.server.flow import Flow
from headrace.server.job import Job
from headrace.server.looks import Looks
from headrace.server.loop import EngineLoop, StepResults
from headrace.server.metrics import RequestMetrics
from headrace.server.render.cache import CacheAnswer
from headrace.server.roofline import Roofline
from headrace.server.saving import Saves
from headrace.server.settings import ServeSettings
from headrace.server.texts import Texts

_LOG = logging.getLogger("headrace.server")
#: Nodes of the prefix tree that are shown one by one: usually, and at most.
USUAL_TREE_NODES, MAX_TREE_NODES = 200, 1000


class Door:
    """model: opened; engine: built over it. Call `start` on the loop that will serve."""

    def __init__(
        self, settings: ServeSettings, model: OpenModel, engine: Engine, template: str | None
    ) -> None:
        self.settings = settings
        self.model = model
        self.created = int(time.time())
        self.max_model_len = engine.config.max_model_len
        self.max_num_seqs = engine.config.max_num_seqs
        self.hidden_size = engine.executor.hidden_size
        self._engine = engine
        self.cache_answer = CacheAnswer(
            engine.config, engine.manager.windows, secrets.token_bytes(16)
        )
        self.texts = Texts(settings, model, self.max_model_len, template)
        self.fingerprint = f"headrace-{__version__}-{_short_hash(model)}"
        self.max_open = engine.config.max_num_seqs + settings.max_queued_requests
        self._flows: dict[Job, Flow] = {}
        self.num_open = 0  # jobs inside
        self.metrics = RequestMetrics(self.max_model_len)
        self._ticker: asyncio.Task[None] | None = None
        self.loop: EngineLoop
        self.looks: Looks[CacheLook]
        self._tree_looks: dict[int, Looks[TreeLook | None]]
        self.saves: Saves | None = None  # with --kv-save
        self.account: StepAccount
        self.roofline: Roofline

    def warm_up(self) -> None:
        """Does once what the first request would otherwise wait for, and measures the machine, if
        wanted. Raises HeadraceError for a broken template of the user's, and for a model that
        computes nothing."""
        self._compute(self.texts.warm_up()[: self.max_model_len - 1])
        limits = self._measured()
        self.account = self._engine.account = StepAccount(limits)
        rates = None if limits is None else limits.rates
        self.roofline = Roofline(self.model, self.engine_config, rates)
        if self.engine_config.kv_save is not None:
            self._engine.cache.restore(self.engine_config.kv_save)

    def _compute(self, ids: list[int]) -> None:
        """A first prompt, and a second token where there is room. Raises HeadraceError."""
        num_tokens = min(2, self.max_model_len - len(ids))
        params = SamplingParams(max_tokens=num_tokens, seed=0)
        request = self._engine.add(ids, params, cache_salt=None)
        while self._engine.has_work:
            self._engine.step()
        error = request.generations[0].error
        if error is not None:
            raise HeadraceError(f"The model cannot compute a first token: {error}")

    def _measured(self) -> StepLimits | None:
        """What the machine allows at most, measured now; None where that is not wanted or fails."""
        if not self.settings.step_limits:
            return None
        try:
            return limits_of(self.model, self._engine.config)
        except HeadraceError as error:
            _LOG.warning("answers say nothing about the machine's limit: %s", error)
            return None

    def start(self) -> None:
        """Starts the engine's thread; results arrive on the running asyncio loop."""
        self.loop = EngineLoop(self._engine, asyncio.get_running_loop(), self._deliver)
        self.looks = Looks(self.loop, take_look)
        self._tree_looks = {
            most: Looks(self.loop, partial(_tree_shape, max_nodes=most))
            for most in (USUAL_TREE_NODES, MAX_TREE_NODES)
        }
        if self.engine_config.kv_save is not None:
            self.saves = Saves(self.loop, self.engine_config.kv_save)
        self.account.on_step = self.loop.meter.step
        self.loop.start()
        self._ticker = asyncio.create_task(self._tick())

    def close(self) -> None:
        """Stops the engine's thread. Whatever still runs never ends: cancel it first. Then
        `save_prefixes` may follow."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.loop.stop()

    def save_prefixes(self) -> None:
        """Saves the cached prefixes of a stopped engine, where kv_save says so; may take long on a
        slow disk. The log says what came of it."""
        if self.engine_config.kv_save is not None and not self.loop.is_broken:
            self._engine.cache.save(self.engine_config.kv_save)

    # ---- requests ---------------------------------------------------------------------------

    def check_pin(self, num_positions: int) -> None:
        """Raises UsageError or CapacityError where a prefix of so many positions can never be
        pinned, so that nobody computes it in vain."""
        self._engine.cache.check_pin(num_positions)

    def open(self, jobs: Sequence[Job]) -> Flow:
        """Checks all jobs of one HTTP request, then queues all of them.

        Raises PromptError, UsageError or CapacityError of the first that cannot run, and
        QueueFullError when they do not all fit the queue; then nothing was queued.
        """
        for job in jobs:
            self._engine.check(job.prompt, job.wanted)
        if len(jobs) > self.max_open:  # waiting would not help
            raise UsageError(
                f"The request holds {len(jobs)} prompts, and this server has room for "
                f"{self.max_open}: send fewer, or raise --max-queued-requests."
            )
        if self.num_open + len(jobs) > self.max_open:
            raise QueueFullError(
                f"The server is busy: {self.num_open} requests are running or waiting and at most "
                f"{self.max_open} may; try again later."
            )
        flow = Flow(self.loop, jobs, self.settings.max_buffered_deltas)
        self.num_open += len(jobs)
        for job in jobs:
            self._flows[job] = flow
        self.loop.submit(jobs)
        return flow

    @property
    def engine_config(self) -> EngineConfig:
        return self._engine.config

    @property
    def num_running_waiting(self) -> tuple[int, int]:
        """Sequences in the steps, and requests that wait for a place, new ones included."""
        scheduler = self._engine.scheduler
        return len(scheduler.running), len(scheduler.waiting) + self.loop.num_entering

    @property
    def num_paused(self) -> int:
        """Sequences that wait for a slow reader."""
        return len(self._engine.scheduler.paused)

    @property
    def num_preemptions(self) -> int:
        return self._engine.num_preemptions

    @property
    def kv_blocks(self) -> list[PoolUse]:
        """Of the KV cache, by group; not to be reckoned with while the engine works."""
        return [pool_use(pool) for pool in self._engine.manager.pools]

    @property
    def kv_pools(self) -> list[tuple[BlockPool, int | None, int]]:
        """(blocks, window, bytes of a block) of every KV group: look, do not change."""
        manager, sizes = self._engine.manager, self.engine_config.pools.block_bytes
        return list(zip(manager.pools, manager.windows, sizes, strict=True))

    @property
    def jobs(self) -> Iterable[Job]:
        """All that are inside, oldest first; to be read before anything is awaited."""
        return self._flows

    @property
    def tree_size(self) -> tuple[int, int]:
        """Nodes and positions of the prefix tree."""
        tree = self._engine.cache.tree
        return (0, 0) if tree is None else (tree.num_nodes, tree.num_tokens)

    async def tree_shape(self, max_nodes: int) -> TreeLook | None:
        """So many of the prefix tree's nodes, or more; None without one."""
        usual = max_nodes <= USUAL_TREE_NODES
        return await self._tree_looks[USUAL_TREE_NODES if usual else MAX_TREE_NODES].look()

    @property
    def cache_stats(self) -> CacheStats | None:
        """Of the prefix tree; None without one."""
        tree = self._engine.cache.tree
        return None if tree is None else tree.stats

    @property
    def num_pins(self) -> int:
        """Pins of the prefix cache."""
        return len(self._engine.cache.reuse.pins or ())

    @property
    def speculation(self) -> SpeculationAccount:
        """What speculation did, over all requests."""
        return self._engine.speculator.total

    def cancel_all(self, reason: str) -> None:
        """Ends every open request."""
        for flow in set(self._flows.values()):
            flow.cancel(reason)

    def _deliver(self, results: StepResults) -> None:
        """Hands the results of a step to their flows; each flow wakes once."""
        flows = self._flows
        awake: dict[Flow, None] = {}
        for job, delta in results.deltas:
            flow = flows[job]
            flow.push(job, delta)
            awake[flow] = None
        for job in results.finished:
            awake[self._end(job)] = None
        for job, error in results.failed:
            awake[self._end(job, error)] = None
        for flow in awake:
            flow.wake()

    def _end(self, job: Job, error: Exception | None = None) -> Flow:
        flow = self._flows.pop(job)
        self.num_open -= 1
        self.metrics.ended(job)
        flow.end_job(error)
        return flow

    async def _tick(self) -> None:
        """Signs of life for streams that have been silent for long (prefill, queue)."""
        interval = self.settings.ping_interval_s
        while True:
            await asyncio.sleep(interval / 2)
            if self.num_pins:
                self.loop.ask(lambda engine: engine.cache.expire())  # without work, no step does it
            before = time.monotonic() - interval
            for flow in set(self._flows.values()):
                if flow.last_sent_s and flow.last_sent_s < before:
                    flow.ping()


def _tree_shape(engine: Engine, max_nodes: int) -> TreeLook | None:
    """On the engine's thread; None without a prefix tree."""
    tree = engine.cache.tree
    return None if tree is None else tree.shape(max_nodes)


def _short_hash(model: OpenModel) -> str:
    """Tells one model file, quantised in one way, from another."""
    parts = (model.path.name, str(model.quantize), *model.program.identity)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]
