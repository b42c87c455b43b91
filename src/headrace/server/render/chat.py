"""chat.completion and chat.completion.chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.generation import Generation
from headrace.engine.outputs import CompletionOutput, Delta
from headrace.server.job import Job
from headrace.server.parsing.answer import AnswerFormat, AnswerParser, num_reasoning_tokens
from headrace.server.parsing.message import delta_of, message_of
from headrace.server.parsing.pieces import Content
from headrace.server.render.answer import (
    AnswerOptions,
    account,
    dump,
    new_call_id,
    traces,
    usage,
)
from headrace.server.render.chunks import Chunks
from headrace.server.render.logprobs import chat_logprobs


class ChatRenderer:
    """num_choices: over all jobs. num_top: top_logprobs, None = no logprobs at all. form: how the
    answers are read; plain ones are passed on as they are."""

    def __init__(
        self,
        options: AnswerOptions,
        jobs: Sequence[Job],
        num_choices: int,
        num_top: int | None,
        form: AnswerFormat,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._num_choices = num_choices
        self._num_top = num_top
        self._form = form
        self._as_it_stands = form.plain
        self._readers: dict[int, AnswerParser] = {}  # of streamed choices, unless they are plain
        self._chunks = Chunks(
            options,
            jobs,
            num_choices,
            kind="chat.completion.chunk",
            around=('"delta":{"content":', "}"),
            plain=num_top is None,
        )

    @property
    def id(self) -> str:
        return self._options.id

    # ---- stream -----------------------------------------------------------------------------

    def start(self) -> bytes:
        first = {"delta": {"role": "assistant", "content": ""}}
        more = {"prompt_token_ids": self._jobs[0].prompt} if self._options.token_ids else None
        return b"".join(
            self._chunks.event(index, first, more=None if index else more)
            for index in range(self._num_choices)
        )

    def chunk(self, job: Job, delta: Delta) -> bytes:
        index = job.first_index + delta.index
        self._chunks.num_told += len(delta.token_ids)
        if not self._as_it_stands:
            return self._read(index, job, delta)
        events = b""
        if delta.text or (delta.token_ids and not self._chunks.plain):
            events = self._content(index, job, delta, delta.text)
        if delta.finish_reason is not None:
            events += self._finish(index, delta.finish_reason)
        return events

    def _read(self, index: int, job: Job, delta: Delta) -> bytes:
        """As above, for an answer that may hold more than content."""
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._form.parser(new_call_id)
        self._chunks.num_reasoning += len(delta.token_ids) if reader.reasoning else 0
        pieces, reason = reader.push(delta.text), delta.finish_reason
        if reason is not None:
            pieces += reader.finish()
            reason = reader.finish_reason(reason)
        events = b""
        if len(pieces) == 1 and isinstance(pieces[0], Content):
            events = self._content(index, job, delta, pieces[0].text)
        elif pieces or (delta.token_ids and not self._chunks.plain):
            events = self._event(index, job, delta, delta_of(pieces))
        return events if reason is None else events + self._finish(index, reason)

    def _content(self, index: int, job: Job, delta: Delta, text: str) -> bytes:
        if self._chunks.plain:
            return self._chunks.text(index, text)
        return self._event(index, job, delta, {"content": text})

    def _event(self, index: int, job: Job, delta: Delta, content: dict[str, Any]) -> bytes:
        logprobs = self._logprobs(delta.logprobs or [])
        choice = {"delta": content, "logprobs": logprobs, **self._chunks.beside(job, delta)}
        return self._chunks.event(index, choice)

    def _finish(self, index: int, reason: str) -> bytes:
        return self._chunks.finish(index, {"delta": {}, "finish_reason": reason})

    def end(self, jobs: Sequence[Job]) -> bytes:
        return self._chunks.end(jobs)

    # ---- whole ------------------------------------------------------------------------------

    def whole(self, jobs: Sequence[Job]) -> bytes:
        choices = [
            self._choice(job.first_index, generation)
            for job in jobs
            if job.request is not None
            for generation in job.request.generations
        ]
        answer = {
            **self._chunks.names,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(jobs, num_reasoning=self._chunks.num_reasoning),
            **account(jobs),
        }
        if self._options.token_ids:
            answer["prompt_token_ids"] = jobs[0].prompt
        return dump(answer)

    def _choice(self, first_index: int, generation: Generation) -> dict[str, Any]:
        output = generation.output()
        message, reason = self._message(output)
        choice: dict[str, Any] = {
            "index": first_index + output.index,
            "message": message,
            "logprobs": self._logprobs(output.logprobs or []),
            "finish_reason": reason,
            "stop_reason": output.stop_reason,
        }
        if self._options.token_ids:
            choice["token_ids"] = output.token_ids
        if self._options.trace:
            choice["sampler_trace"] = traces(output.trace or (), self._options.tokenizer)
        return choice

    def _message(self, output: CompletionOutput) -> tuple[dict[str, Any], str | None]:
        """The message of a whole answer, and why it ended."""
        if self._as_it_stands or output.finish_reason is None:
            content = {"role": "assistant", "content": output.text, "refusal": None}
            return content, output.finish_reason
        reader = self._form.parser(new_call_id)
        pieces = reader.push(output.text) + reader.finish()
        if self._form.reasoning != "none":
            self._chunks.num_reasoning += num_reasoning_tokens(
                output.token_ids, self._options.tokenizer, self._form
            )
        message = message_of(pieces) | {"refusal": None}
        return message, reader.finish_reason(output.finish_reason)

    def _logprobs(self, entries: Sequence[Any]) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        options = self._options
        content = chat_logprobs(entries, self._num_top, options.tokenizer, options.tokens_as_ids)
        return {"content": content, "refusal": None}
