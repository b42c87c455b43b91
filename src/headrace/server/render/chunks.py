"""The chunks of one streamed answer, as chat and completions both have them.

    {id, object, created, model, system_fingerprint, choices: [{index, …}], usage?, account?}

A chunk that brings nothing but text is put together from prepared pieces around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engine.outputs import Delta
from headrace.server.job import Job
from headrace.server.render.answer import (
    DONE,
    AnswerOptions,
    Traces,
    account,
    data,
    json_text,
    usage,
)


class Chunks:
    """kind: the chunks' `object`. around: what stands in a choice before and after the text.
    plain: chunks of tokens bring nothing but text (no logprobs, that is).

    num_told, num_reasoning: output tokens so far, and those before the end of the reasoning; the
    renderer counts the latter.
    """

    def __init__(
        self,
        options: AnswerOptions,
        jobs: Sequence[Job],
        num_choices: int,
        *,
        kind: str,
        around: tuple[str, str],
        plain: bool,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._num_choices = num_choices
        self._num_ended = 0
        self._traces = Traces(options.tokenizer) if options.trace else None
        self.num_told = 0
        self.num_reasoning = 0
        self.names: dict[str, Any] = {
            "id": options.id,
            "object": kind,
            "created": options.created,
            "model": options.model,
            "system_fingerprint": options.fingerprint,
        }
        self.plain = plain and not (options.continuous_usage or options.token_ids or options.trace)
        self._pieces = self._prepared(*around)

    def _prepared(self, before: str, after: str) -> tuple[str, str, str]:
        head, tail = data({**self.names, "choices": []}).decode().split('"choices":[]')
        usage_null = ',"usage":null' if self._options.include_usage else ""
        return (
            f'{head}"choices":[{{"index":',
            f',"logprobs":null,"finish_reason":null,{before}',
            f"{after}}}]{usage_null}{tail}",
        )

    def text(self, index: int, text: str) -> bytes:
        """A chunk of a plain answer."""
        head, middle, tail = self._pieces
        return f"{head}{index}{middle}{json_text(text)}{tail}".encode()

    def event(
        self,
        index: int,
        choice: Mapping[str, Any],
        *,
        last: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Any chunk. last: of the whole answer; it carries the account. more: fields beside the
        choices."""
        full = {"index": index, "logprobs": None, "finish_reason": None, **choice}
        event = {**self.names, "choices": [full], **(account(self._jobs) if last else more or {})}
        if self._options.continuous_usage:
            event["usage"] = usage(self._jobs, self.num_told, self.num_reasoning)
        elif self._options.include_usage:
            event["usage"] = None
        return data(event)

    def finish(self, index: int, choice: Mapping[str, Any]) -> bytes:
        """The last chunk of one choice."""
        self._num_ended += 1
        return self.event(index, choice, last=self._num_ended == self._num_choices)

    def beside(self, job: Job, delta: Delta) -> dict[str, Any]:
        """What goes beside a delta's text, but for its logprobs."""
        extra: dict[str, Any] = {}
        if self._options.token_ids:
            extra["token_ids"] = delta.token_ids
        if self._traces is not None:
            extra["sampler_trace"] = self._traces.next(job, delta)
        return extra

    def end(self, jobs: Sequence[Job]) -> bytes:
        """What follows the last chunk."""
        if not self._options.include_usage:
            return DONE
        total = usage(jobs, num_reasoning=self.num_reasoning)
        return data({**self.names, "choices": [], "usage": total}) + DONE
