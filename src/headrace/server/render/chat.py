"""chat.completion and chat.completion.chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headrace.engine.generation import Generation
from headrace.engine.outputs import CompletionOutput, Delta
from headrace.server.job import Job
from headrace.server.parsing.answer import AnswerFormat, AnswerParser, num_reasoning_tokens
from headrace.server.parsing.message import delta_of, message_of
from headrace.server.parsing.pieces import Content
from headrace.server.render.answer import (
    DONE,
    AnswerOptions,
    Traces,
    account,
    data,
    dump,
    json_text,
    new_call_id,
    usage,
)
from headrace.server.render.logprobs import chat_logprobs

_NOTHING: Mapping[str, Any] = MappingProxyType({})


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
        self._num_reasoning = 0  # output tokens before the end of the reasoning
        self._num_told = 0  # output tokens
        self._num_ended = 0  # choices
        self._traces = Traces() if options.trace else None
        self._names: dict[str, Any] = {
            "id": options.id,
            "object": "chat.completion.chunk",
            "created": options.created,
            "model": options.model,
            "system_fingerprint": options.fingerprint,
        }
        plain = num_top is None and not (
            options.continuous_usage or options.token_ids or options.trace
        )
        self._plain = self._plain_pieces() if plain else None

    @property
    def id(self) -> str:
        return self._options.id

    def _plain_pieces(self) -> tuple[str, str, str]:
        """A chunk of plain text around its choice index and its text."""
        head = data({**self._names, "choices": []}).decode()
        before, after = head.split('"choices":[]')
        usage_null = ',"usage":null' if self._options.include_usage else ""
        return (
            before + '"choices":[{"index":',
            ',"delta":{"content":',
            '},"logprobs":null,"finish_reason":null}]' + usage_null + after,
        )

    # ---- stream -----------------------------------------------------------------------------

    def start(self) -> bytes:
        return b"".join(
            self._event(index, {"role": "assistant", "content": ""})
            for index in range(self._num_choices)
        )

    def chunk(self, job: Job, delta: Delta) -> bytes:
        index = job.first_index + delta.index
        self._num_told += len(delta.token_ids)
        if not self._as_it_stands:
            return self._read(index, job, delta)
        events = b""
        if delta.text or (delta.token_ids and self._plain is None):
            events = self._content(index, job, delta, delta.text)
        if delta.finish_reason is not None:
            events += self._finish(index, delta.finish_reason)
        return events

    def _read(self, index: int, job: Job, delta: Delta) -> bytes:
        """As above, for an answer that may hold more than content."""
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._form.parser(new_call_id)
        self._num_reasoning += len(delta.token_ids) if reader.reasoning else 0
        pieces, reason = reader.push(delta.text), delta.finish_reason
        if reason is not None:
            pieces += reader.finish()
            reason = reader.finish_reason(reason)
        events = b""
        if len(pieces) == 1 and isinstance(pieces[0], Content):
            events = self._content(index, job, delta, pieces[0].text)
        elif pieces or (delta.token_ids and self._plain is None):
            events = self._event(index, delta_of(pieces), self._extra(job, delta))
        return events if reason is None else events + self._finish(index, reason)

    def _content(self, index: int, job: Job, delta: Delta, text: str) -> bytes:
        if self._plain is not None:
            head, middle, tail = self._plain
            return f"{head}{index}{middle}{json_text(text)}{tail}".encode()
        return self._event(index, {"content": text}, self._extra(job, delta))

    def _extra(self, job: Job, delta: Delta) -> dict[str, Any]:
        """What goes beside the text of a delta."""
        extra: dict[str, Any] = {"logprobs": self._logprobs(delta.logprobs or [])}
        if self._options.token_ids:
            extra["token_ids"] = delta.token_ids
        if self._traces is not None:
            extra["sampler_trace"] = self._traces.next(job, delta)
        return extra

    def _finish(self, index: int, reason: str) -> bytes:
        """The last of them carries the account."""
        self._num_ended += 1
        last = self._num_ended == self._num_choices
        own = account(self._jobs) if last else {}
        return self._event(index, {}, {"finish_reason": reason}, own)

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        extra: Mapping[str, Any] = _NOTHING,
        own: Mapping[str, Any] = _NOTHING,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **extra}
        event = {**self._names, "choices": [choice], **own}
        if self._options.continuous_usage:
            event["usage"] = usage(self._jobs, self._num_told, self._num_reasoning)
        elif self._options.include_usage:
            event["usage"] = None
        return data(event)

    def end(self, jobs: Sequence[Job]) -> bytes:
        if not self._options.include_usage:
            return DONE
        total = usage(jobs, num_reasoning=self._num_reasoning)
        return data({**self._names, "choices": [], "usage": total}) + DONE

    # ---- whole ------------------------------------------------------------------------------

    def whole(self, jobs: Sequence[Job]) -> bytes:
        choices = [
            self._choice(job.first_index, generation)
            for job in jobs
            if job.request is not None
            for generation in job.request.generations
        ]
        answer = {
            **self._names,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(jobs, num_reasoning=self._num_reasoning),
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
            choice["sampler_trace"] = [step.to_dict() for step in output.trace or []]
        return choice

    def _message(self, output: CompletionOutput) -> tuple[dict[str, Any], str | None]:
        """The message of a whole answer, and why it ended."""
        if self._as_it_stands or output.finish_reason is None:
            content = {"role": "assistant", "content": output.text, "refusal": None}
            return content, output.finish_reason
        reader = self._form.parser(new_call_id)
        pieces = reader.push(output.text) + reader.finish()
        if self._form.reasoning != "none":
            self._num_reasoning += num_reasoning_tokens(
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
