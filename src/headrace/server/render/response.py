"""The answer of /v1/responses: one object, or the events of its making."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.engine.outputs import Delta, LogprobEntry
from headrace.server.job import Job
from headrace.server.parsing.answer import AnswerFormat, AnswerParser, num_reasoning_tokens
from headrace.server.parsing.pieces import Content, Piece, Reasoning, ToolCallStart
from headrace.server.render.answer import AnswerOptions, account, dump, new_call_id, usage
from headrace.server.render.logprobs import chat_logprobs
from headrace.server.render.response_items import OutputItems


class ResponseRenderer:
    """echo: what the object repeats of the request. num_top: top_logprobs, None = no logprobs at
    all. form: how the answer is read."""

    def __init__(
        self,
        options: AnswerOptions,
        jobs: Sequence[Job],
        echo: Mapping[str, Any],
        num_top: int | None,
        form: AnswerFormat,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._echo = echo
        self._num_top = num_top
        self._form = form
        self._items = OutputItems()
        self._reader: AnswerParser | None = None if form.plain else form.parser(new_call_id)
        self._num_reasoning = 0
        self._pending: list[dict[str, Any]] = []  # logprobs of text that is not certain yet
        self._reason: str | None = None

    @property
    def id(self) -> str | None:
        return self._options.id.replace("-", "_", 1)

    # ---- stream -----------------------------------------------------------------------------

    def start(self) -> bytes:
        begun = {"response": self._object("in_progress")}
        items = self._items
        return items.event("response.created", begun) + items.event("response.in_progress", begun)

    def chunk(self, job: Job, delta: Delta) -> bytes:
        events = self._push(delta.text, delta.logprobs or [], len(delta.token_ids))
        if delta.finish_reason is not None:
            events += self._finish(delta.finish_reason)
        return events

    def end(self, jobs: Sequence[Job]) -> bytes:
        status = "incomplete" if self._reason == "length" else "completed"
        return self._items.event(f"response.{status}", {"response": self._object(status)})

    # ---- whole ------------------------------------------------------------------------------

    def whole(self, jobs: Sequence[Job]) -> bytes:
        assert jobs[0].request is not None
        output = jobs[0].request.generations[0].output()
        self._push(output.text, output.logprobs or [], 0)
        if self._form.reasoning != "none":
            self._num_reasoning = num_reasoning_tokens(
                output.token_ids, self._options.tokenizer, self._form
            )
        self._finish(output.finish_reason or "stop")
        return dump(self._object("incomplete" if self._reason == "length" else "completed"))

    # ---- parts ------------------------------------------------------------------------------

    def _push(self, text: str, entries: Sequence[LogprobEntry], num_tokens: int) -> bytes:
        logprobs: list[dict[str, Any]] = []
        if self._num_top is not None:
            options = self._options
            logprobs = chat_logprobs(
                entries, self._num_top, options.tokenizer, options.tokens_as_ids
            )
        if self._reader is None:
            return self._items.text(text, logprobs) if text or logprobs else b""
        if self._reader.reasoning:
            self._num_reasoning += num_tokens
        else:
            self._pending += logprobs
        return self._add(self._reader.push(text))

    def _finish(self, reason: str) -> bytes:
        self._reason = reason
        events = b"" if self._reader is None else self._add(self._reader.finish())
        return events + self._items.finish(complete=reason != "length")

    def _add(self, pieces: Iterable[Piece]) -> bytes:
        items, events = self._items, b""
        for piece in pieces:
            if isinstance(piece, Content):
                logprobs, self._pending = self._pending, []
                events += items.text(piece.text, logprobs)
            elif isinstance(piece, Reasoning):
                events += items.reasoning(piece.text)
            elif isinstance(piece, ToolCallStart):
                self._pending = []
                events += items.call(piece.id, piece.name)
            else:
                events += items.arguments(piece.fragment)
        return events

    def _object(self, status: str) -> dict[str, Any]:
        options, ended = self._options, status != "in_progress"
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        answer: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": options.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "model": options.model,
            "output": self._items.done if ended else [],
            **self._echo,
            "usage": self._usage() if ended else None,
        }
        return answer | account(self._jobs) if ended else answer

    def _usage(self) -> dict[str, Any]:
        counts = usage(self._jobs, num_reasoning=self._num_reasoning)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": counts["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning},
            "total_tokens": counts["total_tokens"],
        }
