"""Door: what every route needs of a loaded model: its tokenizer and template, its engine, and how a
request gets in. Lives on the asyncio thread; knows no routes and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace import __version__
from headrace.engine.account import StepAccount
from headrace.engine.config import EngineConfig
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel
from headrace.engine.params import SamplingParams
from headrace.errors import (
    ContextLengthError,
    HeadraceError,
    ModelFileError,
    PromptError,
    QueueFullError,
    UsageError,
)
from headrace.formats.chat_template import (
    MAX_SOURCE,
    ChatTemplate,
    encode_chat,
    special_tokens,
)
from headrace.formats.fill_in_middle import GapTokens, gap_tokens
from headrace.formats.tokenizer import Tokenizer
from headrace.limits.step_limits import StepLimits, limits_of
from headrace.server.flow import Flow
from headrace.server.job import Job
from headrace.server.loop import EngineLoop, StepResults
from headrace.server.metrics import RequestMetrics
from headrace.server.parsing.tool_messages import CALL_SHAPES
from headrace.server.parsing.tool_style import ToolStyle, tool_style
from headrace.server.settings import ServeSettings
from headrace.structured.compiler import CompiledGrammar, GrammarCompiler
from headrace.structured.spec import StructuredOutputs

_LOG = logging.getLogger("headrace.server")
T = TypeVar("T")

#: Characters that are tokenized at once; longer texts go to a worker thread.
INLINE_CHARACTERS = 8192
#: So many of them are worked on together: each takes a core, and memory in proportion.
MAX_LONG_WORK = 2


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
        self._template_override = template
        self._template: ChatTemplate | None = None
        self._tool_style: ToolStyle | None = None
        self.gap_tokens: GapTokens | None = None  # None: cannot fill gaps
        self.fingerprint = f"headrace-{__version__}-{_short_hash(model)}"
        self.max_open = engine.config.max_num_seqs + settings.max_queued_requests
        self._flows: dict[Job, Flow] = {}
        self.num_open = 0  # jobs inside
        self.metrics = RequestMetrics(self.max_model_len)
        self._ticker: asyncio.Task[None] | None = None
        self._long_work = asyncio.Semaphore(MAX_LONG_WORK)
        self._grammars = GrammarCompiler(model.tokenizer)
        self._compiling = asyncio.Semaphore(MAX_LONG_WORK)
        self.loop: EngineLoop
        self.account: StepAccount

    def warm_up(self) -> None:
        """Does once what the first request would otherwise wait for: libraries, tokenizer,
        template, two steps. Measures the machine, if wanted. Raises HeadraceError for a broken
        template of the user's, and for a model that computes nothing; one without a template
        serves completions only."""
        message = [{"role": "user", "content": "Hello"}]
        try:
            template = self.template()
            ids = encode_chat(self.tokenizer, template, message)
            self._tool_style = tool_style(template, self.settings.tool_call_parser)
        except HeadraceError:
            if self._template_override is not None:
                raise
            ids = self.tokenizer.encode("Hello")
        self.gap_tokens = gap_tokens(self.model.checkpoint.metadata, self.tokenizer)
        self._compute(ids[: self.max_model_len - 1])
        self.account = self._engine.account = StepAccount(self._limits())

    def _compute(self, ids: list[int]) -> None:
        """A first prompt, and a second token where there is room. Raises HeadraceError."""
        num_tokens = min(2, self.max_model_len - len(ids))
        request = self._engine.add(ids, SamplingParams(max_tokens=num_tokens, seed=0))
        while self._engine.has_work:
            self._engine.step()
        error = request.generations[0].error
        if error is not None:
            raise HeadraceError(f"The model cannot compute a first token: {error}")

    def prepare_grammars(self) -> None:
        """Reads the vocabulary for structured output: 0.2 s for 49,152 ids, 2 s for 262,144, and
        half of it with the interpreter's lock held, so before anybody waits."""
        with contextlib.suppress(UsageError):  # without the library, such requests are refused
            self._grammars.prepare()

    def _limits(self) -> StepLimits | None:
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
        self.account.on_step = self.loop.meter.step
        self.loop.start()
        self._ticker = asyncio.create_task(self._tick())

    def close(self) -> None:
        """Stops the engine's thread. Whatever still runs never ends: cancel it first."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.loop.stop()

    # ---- text -------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def template(self, source: str | None = None) -> ChatTemplate:
        """The model's template, or a request's own text, which is never taken for a file's name
        and which only a server that was told to trusts. Raises PromptError without one."""
        if source is not None and not self.settings.trust_request_chat_template:
            raise PromptError(
                "chat_template: this server takes no templates from requests "
                "(--trust-request-chat-template)."
            )
        try:
            if source is not None:
                return ChatTemplate(source, special_tokens(self.tokenizer), "of the request")
            if self._template is None:
                self._template = self.model.chat_template(self._template_override)
        except ModelFileError as error:
            raise PromptError(str(error)) from None
        return self._template

    @property
    def template_source(self) -> str | None:
        """The text of the template in use; None for a model that has none."""
        try:
            return self.template().source
        except PromptError:
            return None

    async def tool_style(self, template: ChatTemplate) -> ToolStyle:
        """How this template does tools; known beforehand for the model's own. A request's template
        is asked only a few times, since it may take long over each."""
        if template is self._template and self._tool_style is not None:
            return self._tool_style
        parser = self.settings.tool_call_parser
        return await self.off_loop(
            MAX_SOURCE,
            lambda: self._blaming(tool_style, template, parser, shapes=CALL_SHAPES[:1]),
        )

    async def encode(self, texts: Sequence[str], *, add_special: bool = True) -> list[list[int]]:
        """Ids of texts; one that no context could hold is refused before it is tokenized."""
        encode = self.tokenizer.encode
        for text in texts:
            self._check_size(len(text))
        return await self.off_loop(
            sum(map(len, texts)), lambda: [encode(text, add_special=add_special) for text in texts]
        )

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], template: ChatTemplate, **options: Any
    ) -> list[int]:
        """Ids of a conversation. options: see formats.chat_template.ChatTemplate.render."""
        size = conversation_size(messages, options.get("tools"))
        self._check_size(size)
        return await self.off_loop(
            self._rendering_size(size, template, options),
            lambda: self._blaming(encode_chat, self.tokenizer, template, messages, **options),
        )

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], template: ChatTemplate, **options: Any
    ) -> str:
        """The text of a conversation; options as above."""
        size = conversation_size(messages, options.get("tools"))
        return await self.off_loop(
            self._rendering_size(size, template, options),
            lambda: self._blaming(template.render, messages, **options),
        )

    def _rendering_size(self, size: int, template: ChatTemplate, options: Mapping[str, Any]) -> int:
        """What a template of the request's own does has nothing to do with what it is given."""
        if template is not self._template:
            return size + MAX_SOURCE
        return size + len(str(options.get("variables") or ""))

    def _check_size(self, num_characters: int) -> None:
        limit = self.max_model_len
        if num_characters > 4 * limit * self.tokenizer.max_token_bytes:
            raise ContextLengthError(
                f"The context limit is {limit} tokens, and the prompt has {num_characters:,} "
                f"characters, which cannot fit. Shorten it or raise --max-model-len."
            )

    def _blaming(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """A template that fails on a request's messages is the request's trouble."""
        try:
            return work(*arguments, **options)
        except ModelFileError as error:
            raise PromptError(str(error)) from None

    async def compile(self, outputs: StructuredOutputs) -> CompiledGrammar:
        """The grammar of what an answer must look like. Raises UsageError."""
        async with self._compiling:
            return await asyncio.to_thread(self._grammars.compile, outputs)

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Runs work here when it is small, else in a thread, so that streams do not wait."""
        if size <= INLINE_CHARACTERS:
            return work()
        async with self._long_work:
            return await asyncio.to_thread(work)

    # ---- requests ---------------------------------------------------------------------------

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
    def kv_blocks(self) -> tuple[list[int], list[int]]:
        """(used, all) blocks of the KV cache, by group."""
        total = list(self._engine.config.pools.num_blocks)
        free = self._engine.manager.free_counts
        return [n - f for n, f in zip(total, free, strict=True)], total

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
            before = time.monotonic() - interval
            for flow in set(self._flows.values()):
                if flow.last_sent_s and flow.last_sent_s < before:
                    flow.ping()


def conversation_size(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> int:
    """About how many characters there are to render."""
    size = 32 * len(messages)
    for message in messages:
        size += len(str(message.get("content", "")))
        if message.get("tool_calls"):
            size += len(str(message["tool_calls"]))
    return size + sum(len(str(tool)) for tool in tools or ())


def _short_hash(model: OpenModel) -> str:
    """Tells one model file, quantised in one way, from another."""
    parts = (model.path.name, str(model.quantize), *model.program.identity)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]
