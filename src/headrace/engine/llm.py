"""LLM: the engine for Python programs, in the shape vLLM users know.

    llm = LLM("smollm2-135m")
    for output in llm.generate(["The sea is"], SamplingParams(temperature=0, max_tokens=16)):
        print(output.outputs[0].text)

Every call drives the one engine; calls from several threads and several open streams share its
steps. All prompts of a call are checked before any is queued.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.engine.admission import check_text_size
from headrace.engine.config import EngineConfig, EngineOptions
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.model import (
    ExecutorFactory,
    OpenModel,
    build_engine,
    native_executor,
    open_draft,
    open_model,
)
from headrace.engine.outputs import Delta, RequestOutput
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.engine.prompts import Prompt, TokenPrompt, as_prompt_list, params_list, read_prompt
from headrace.errors import UsageError
from headrace.formats.fetching import Reporter
from headrace.formats.tokenizer import Tokenizer
from headrace.structured.compiler import CompiledGrammar, GrammarCompiler

if TYPE_CHECKING:
    from headrace.formats.chat_template import ChatTemplate

Message = Mapping[str, Any]
#: Called with (finished requests, all requests) while generate runs.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt ready to be queued."""

    prompt: TokenPrompt
    params: SamplingParams | PoolingParams
    grammar: CompiledGrammar | None


class LLM:
    """A loaded model with its engine. Close it (or use `with`) to free its memory early."""

    def __init__(
        self,
        model: str | os.PathLike[str] | OpenModel,
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        max_prefill_tokens: int | None = None,
        block_size: int = 16,
        kv_cache_dtype: str = "bf16",
        kv_cache_memory: int | str | None = None,
        kv_allocator: str = "paged",
        batching: str = "continuous",
        speculative: str | None = None,
        draft_model: str | os.PathLike[str] | OpenModel | None = None,
        draft_quantize: str | None = None,
        num_draft_tokens: int | str = "auto",
        acceptance: str = "coupled",
        enable_prefix_caching: bool | None = None,
        schedule_policy: str = "fcfs",
        num_threads: int | None = None,
        seed: int | None = None,
        max_queue: int = 10_000,
        weight_cache: str | None = None,
        kv_save: str | os.PathLike[str] | None = None,
        chat_template: str | None = None,
        quantize: str | None = None,
        offline: bool | None = None,
        progress: Reporter | None = None,
        make_executor: ExecutorFactory = native_executor,
        **unknown: Any,
    ) -> None:
        """model: an alias, a path, hf:owner/name[:quant], or an opened model. chat_template: a
        template or a file with one. quantize: a number format for the linear layers of a model
        given by name, see engine.model.open_model. draft_model, draft_quantize: a model that
        guesses what this one will say, see docs/speculation.md. offline, progress: see
        formats.sources.resolve. make_executor: another interpreter. The rest: EngineOptions.

        Raises UsageError, ModelSourceError, ModelFileError, CapacityError or NativeError.
        """
        options = EngineOptions.from_dict(
            {
                "max_model_len": max_model_len,
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max_num_batched_tokens,
                "max_prefill_tokens": max_prefill_tokens,
                "block_size": block_size,
                "kv_cache_dtype": kv_cache_dtype,
                "kv_cache_memory": kv_cache_memory,
                "kv_allocator": kv_allocator,
                "batching": batching,
                "speculative": speculative,
                "num_draft_tokens": num_draft_tokens,
                "acceptance": acceptance,
                "enable_prefix_caching": enable_prefix_caching,
                "schedule_policy": schedule_policy,
                "num_threads": num_threads,
                "seed": seed,
                "max_queue": max_queue,
                "weight_cache": weight_cache,
                "kv_save": kv_save,
                **unknown,
            }
        )
        if isinstance(model, os.PathLike):
            model = os.fspath(model)
        if isinstance(model, str):
            model = open_model(
                model,
                quantize=quantize,
                num_threads=num_threads,
                offline=offline,
                progress=progress,
            )
        elif quantize is not None:
            raise UsageError("quantize is for a model given by name; open_model takes it too.")
        if not isinstance(model, OpenModel):
            raise UsageError(f"A model is a name or a path, not {type(model).__name__}.")
        self.model: OpenModel = model
        draft = open_draft(
            draft_model,
            quantize=draft_quantize,
            num_threads=num_threads,
            offline=offline,
            progress=progress,
        )
        self.engine: Engine = build_engine(model, options, make_executor, draft=draft)
        if self.engine.config.kv_save is not None:
            self.engine.cache.restore(self.engine.config.kv_save)
        self.grammars = GrammarCompiler(model.tokenizer)
        self._template_override = chat_template
        self._template: ChatTemplate | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._streams: dict[int, deque[Delta]] = {}
        self._abandoned: deque[Request] = deque()  # of streams that were dropped before their end

    # ---- whole results ----------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Completes each prompt; results in the order of the prompts.

        prompts: see engine/prompts.py. sampling_params: one for all, one for each, or None for the
        defaults with at most 16 tokens. A request that fails while it runs does not raise: its
        outputs have finish_reason "error" and say why.
        """
        return self._run(self._read(prompts, sampling_params), progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several, through the model's chat template.

        What a conversation has in common with earlier ones is not computed again
        (num_cached_tokens tells how much). template_options: see
        formats.chat_template.ChatTemplate.render.
        """
        many = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if many else [messages]
        ids = [self.encode_chat(conversation, **template_options) for conversation in conversations]
        jobs = self._read([self._shown(i) for i in ids], sampling_params)
        return self._run(jobs, progress)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: PoolingParams | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """One vector for each prompt, in `embedding` of its output: float32 [E].

        pooling: default the mean of all tokens' final hidden values, normalised. A request that
        fails while it runs does not raise: its embedding is None and outputs[0].error says why.
        """
        params = PoolingParams() if pooling is None else pooling
        if not isinstance(params, PoolingParams):
            raise UsageError(f"pooling is PoolingParams, not {type(params).__name__}.")
        return self._run([self._job(item, params) for item in as_prompt_list(prompts)], progress)

    # ---- streams ----------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
    ) -> Stream:
        """Queues one prompt and returns its deltas as they come; see Stream."""
        [job] = self._read([prompt], sampling_params)
        with self._lock:
            request = self._add(job)
            self._streams[request.request_id] = deque()
        return Stream(self, request)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        **template_options: Any,
    ) -> Stream:
        """The streaming form of `chat`, for one conversation."""
        ids = self.encode_chat(messages, **template_options)
        return self.stream(self._shown(ids), sampling_params)

    def abort(self, request: Request | Stream, reason: str | None = None) -> None:
        """Ends a request in any state. Its last deltas still reach its stream. reason: see
        Engine.abort."""
        if isinstance(request, Stream):
            request = request.request
        with self._lock:
            self._dispatch(self.engine.abort(request, reason))

    # ---- conversations ----------------------------------------------------------------------

    def session(self, *, system: str | None = None) -> Session:
        """A conversation that remembers its messages."""
        return Session(self, system)

    def clear_prefix_cache(self) -> None:
        """Forgets all cached prefixes; what runs goes on."""
        with self._lock:
            self.engine.cache.clear()

    # ---- text -------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def config(self) -> EngineConfig:
        """The resolved limits in force."""
        return self.engine.config

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text; add_special: with the model's BOS."""
        return self.tokenizer.encode(text, add_special=add_special)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self.tokenizer.decode(token_ids, skip_special=skip_special)

    def encode_chat(self, messages: Sequence[Message], **template_options: Any) -> list[int]:
        """Token ids of a conversation, as `chat` sends them."""
        from headrace.formats.chat_template import encode_chat  # loads jinja2

        template = self.check_chat_template()
        return encode_chat(self.tokenizer, template, messages, **template_options)

    def check_chat_template(self) -> ChatTemplate:
        """The template that `chat` renders with, compiled. Raises ModelFileError when the model has
        none or it does not compile, UsageError for a wrong chat_template."""
        with self._lock:
            if self._template is None:
                self._template = self.model.chat_template(self._template_override)
            return self._template

    def _shown(self, ids: list[int]) -> Prompt:
        """A rendered conversation: its ids, and their text for the result."""
        return {"prompt": self.decode(ids, skip_special=False), "prompt_token_ids": ids}

    # ---- the engine's side ------------------------------------------------------------------

    def close(self) -> None:
        """Ends everything that runs, and saves the cached prefixes where kv_save says so. The
        object cannot be used afterwards."""
        with self._lock:
            for request in self.engine.requests():
                self._dispatch(self.engine.abort(request))
            if self.config.kv_save is not None and not self._closed:
                self.engine.cache.save(self.config.kv_save)
            self._closed = True

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(
        self,
        prompts: object,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Job]:
        """Every prompt as ids with its parameters, all checked, nothing queued."""
        items = as_prompt_list(prompts)
        return [
            self._job(item, given or SamplingParams())
            for item, given in zip(items, params_list(sampling_params, len(items)), strict=True)
        ]

    def _job(self, item: Prompt, params: SamplingParams | PoolingParams) -> Job:
        prompt = read_prompt(item, self._encode_prompt)
        with self._lock:
            self.engine.check(prompt.token_ids, params)
        spec = params.structured_outputs if isinstance(params, SamplingParams) else None
        return Job(prompt, params, None if spec is None else self.grammars.compile(spec))

    def _encode_prompt(self, text: str) -> list[int]:
        """Like encode, but a text that no context of this engine could hold is refused first."""
        check_text_size(len(text), self.config.max_model_len, self.tokenizer.max_token_bytes)
        return self.encode(text)

    def _run(
        self,
        jobs: list[Job],
        progress: Progress | None,
    ) -> list[RequestOutput]:
        requests: list[Request] = []
        open_requests: list[Request] = []
        num_finished = self.engine.num_finished
        pending = deque(jobs)
        try:
            while pending or open_requests:
                with self._lock:
                    while pending and self.engine.has_queue_room:
                        request = self._add(pending.popleft())
                        requests.append(request)
                        open_requests.append(request)
                    self._step()
                    unchanged = num_finished == self.engine.num_finished
                    num_finished = self.engine.num_finished
                if unchanged:
                    continue
                still_open = [r for r in open_requests if not r.finished]
                if progress is not None and len(still_open) < len(open_requests):
                    progress(len(requests) - len(still_open), len(jobs))
                open_requests = still_open
        finally:  # only after an exception, Ctrl-C included, is anything still open
            for request in open_requests:
                self.abort(request)
        return [request.output() for request in requests]

    def _add(self, job: Job) -> Request:
        return self.engine.add(
            job.prompt.token_ids,
            job.params,
            prompt=job.prompt.text,
            cache_salt=job.prompt.cache_salt,
            constraint=None if job.grammar is None else job.grammar.start(),
        )

    def _step(self) -> None:
        with self._lock:
            while self._abandoned:
                request = self._abandoned.popleft()
                self._streams.pop(request.request_id, None)
                self.engine.abort(request)
            self._dispatch(self.engine.step())

    def _dispatch(self, deltas: list[Delta]) -> None:
        if not self._streams:
            return
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.append(delta)


class Stream:
    """Deltas of one request, in order; iterating drives the engine.

    Joined deltas are the whole text.
    Close it (or use `with`) to abort a request that has not finished.
    """

    def __init__(self, llm: LLM, request: Request) -> None:
        self._llm = llm
        self.request = request

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        llm, key = self._llm, self.request.request_id
        with llm._lock:
            while True:
                queue = llm._streams.get(key)
                if queue:
                    return queue.popleft()
                if queue is None or self.request.finished:
                    llm._streams.pop(key, None)
                    raise StopIteration
                llm._step()

    @property
    def result(self) -> RequestOutput:
        """The result so far; final once the stream has ended."""
        return self.request.output()

    def abort(self) -> None:
        """Ends the request; its last deltas are still delivered."""
        self._llm.abort(self.request)

    def close(self) -> None:
        """Aborts the request if it still runs and forgets undelivered deltas."""
        with self._llm._lock:
            self.abort()
            self._llm._streams.pop(self.request.request_id, None)

    def __del__(self) -> None:
        # Any thread, any moment: only leave a note, which the next step reads.
        if self.request.request_id in self._llm._streams:
            self._llm._abandoned.append(self.request)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """One conversation. messages: what has been said; may be read, and edited between turns (the
    next turn then reuses the KV up to the first difference)."""

    def __init__(self, llm: LLM, system: str | None) -> None:
        self._llm = llm
        self.messages: list[dict[str, Any]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def chat(
        self, text: str, sampling_params: SamplingParams | None = None, **template_options: Any
    ) -> RequestOutput:
        """One turn: adds the user's message, answers, remembers the answer (sample 0)."""
        turn = [*self.messages, {"role": "user", "content": text}]
        [output] = self._llm.chat(turn, sampling_params, **template_options)
        self.remember(text, output.outputs[0].text)
        return output

    def stream(
        self, text: str, sampling_params: SamplingParams | None = None, **template_options: Any
    ) -> Stream:
        """One turn as a stream. Call `remember` with the answer when it has ended."""
        turn = [*self.messages, {"role": "user", "content": text}]
        return self._llm.stream_chat(turn, sampling_params, **template_options)

    def remember(self, text: str, answer: str) -> None:
        """Adds a finished turn to the messages."""
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", "content": answer})
