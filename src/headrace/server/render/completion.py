"""text_completion: whole answers and stream chunks, which have the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.generation import Generation, Request
from headrace.engine.outputs import Delta, LogprobEntry
from headrace.server.job import Job
from headrace.server.render.answer import AnswerOptions, account, dump, traces, usage
from headrace.server.render.chunks import Chunks
from headrace.server.render.logprobs import CompletionLogprobs


class CompletionRenderer:
    """echo: texts of the prompts, one per job, to begin each answer with; None = no echo.
    num_top: completions' logprobs, None = none. keep: of the samples of each job only so many, the
    most probable ones (best_of); None = all."""

    def __init__(
        self,
        options: AnswerOptions,
        jobs: Sequence[Job],
        num_choices: int,
        *,
        echo: Sequence[str] | None = None,
        num_top: int | None = None,
        keep: int | None = None,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._num_choices = num_choices
        self._echo = echo
        self._num_top = num_top
        self._keep = keep
        self._unechoed = set() if echo is None else set(range(num_choices))
        self._offsets: dict[int, CompletionLogprobs] = {}
        self._chunks = Chunks(
            options, jobs, num_choices,
            kind="text_completion", around=('"text":', ""), plain=num_top is None,
        )  # fmt: skip

    @property
    def id(self) -> str:
        return self._options.id

    # ---- stream -----------------------------------------------------------------------------

    def start(self) -> bytes:
        if not self._options.token_ids:
            return b""
        return b"".join(
            self._chunks.event(
                job.first_index + sample,
                {"text": "", "token_ids": [], "prompt_token_ids": job.prompt},
            )
            for job in self._jobs
            for sample in range(job.params.n)
        )

    def chunk(self, job: Job, delta: Delta) -> bytes:
        index = job.first_index + delta.index
        self._chunks.num_told += len(delta.token_ids)
        events = b""
        if index in self._unechoed:
            self._unechoed.remove(index)
            events = self._echo_event(index, job)
        if delta.text or (delta.token_ids and not self._chunks.plain):
            events += self._content(index, job, delta)
        if delta.finish_reason is not None:
            events += self._finish(index, delta)
        return events

    def _echo_event(self, index: int, job: Job) -> bytes:
        choice: dict[str, Any] = {"text": self._echoed(index)}
        if self._num_top is not None:
            assert job.request is not None
            choice["logprobs"] = self._prompt_logprobs(index, job.request)
        return self._chunks.event(index, choice)

    def _content(self, index: int, job: Job, delta: Delta) -> bytes:
        if self._chunks.plain:
            return self._chunks.text(index, delta.text)
        choice: dict[str, Any] = {"text": delta.text}
        if self._num_top is not None:
            choice["logprobs"] = self._lists(index, delta.token_ids, delta.logprobs or [])
        return self._chunks.event(index, choice | self._chunks.beside(job, delta))

    def _finish(self, index: int, delta: Delta) -> bytes:
        ended = {
            "text": "",
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        return self._chunks.finish(index, ended)

    def end(self, jobs: Sequence[Job]) -> bytes:
        return self._chunks.end(jobs)

    # ---- whole ------------------------------------------------------------------------------

    def whole(self, jobs: Sequence[Job]) -> bytes:
        choices: list[dict[str, Any]] = []
        for job in jobs:
            assert job.request is not None
            for generation in self._kept(job.request):
                choices.append(self._choice(len(choices), job, generation))
        answer = {**self._chunks.names, "choices": choices, "usage": usage(jobs), **account(jobs)}
        return dump(answer)

    def _kept(self, request: Request) -> list[Generation]:
        if self._keep is None:
            return request.generations
        ranked = sorted(request.generations, key=_mean_logprob, reverse=True)
        return ranked[: self._keep]

    def _choice(self, index: int, job: Job, generation: Generation) -> dict[str, Any]:
        output = generation.output()
        choice: dict[str, Any] = {
            "index": index,
            "text": ("" if self._echo is None else self._echoed(job.first_index)) + output.text,
            "logprobs": None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._num_top is not None:
            choice["logprobs"] = self._whole_logprobs(index, job, output.token_ids, generation)
        if self._options.token_ids:
            choice["token_ids"] = output.token_ids
            choice["prompt_token_ids"] = job.prompt
        if self._options.trace:
            choice["sampler_trace"] = traces(output.trace or (), self._options.tokenizer)
        return choice

    def _whole_logprobs(
        self, index: int, job: Job, tokens: list[int], generation: Generation
    ) -> dict[str, list[Any]]:
        assert job.request is not None
        own = self._lists_after_prompt(index, job.request)
        rest = self._lists(index, tokens, generation.logprobs or [])
        return {name: own.get(name, []) + values for name, values in rest.items()}

    def _lists_after_prompt(self, index: int, request: Request) -> dict[str, list[Any]]:
        return {} if self._echo is None else self._prompt_logprobs(index, request)

    # ---- parts ------------------------------------------------------------------------------

    def _echoed(self, index: int) -> str:
        assert self._echo is not None
        return self._echo[index * len(self._echo) // self._num_choices]

    def _prompt_logprobs(self, index: int, request: Request) -> dict[str, list[Any]]:
        return self._lists(index, request.prompt_token_ids, request.prompt_logprobs or [])

    def _lists(
        self, index: int, tokens: Sequence[int], entries: Sequence[LogprobEntry | None]
    ) -> dict[str, list[Any]]:
        lists = self._offsets.get(index)
        if lists is None:
            options = self._options
            lists = CompletionLogprobs(options.tokenizer, self._num_top or 0, options.tokens_as_ids)
            self._offsets[index] = lists
        return lists.lists(tokens, entries)


def _mean_logprob(generation: Generation) -> float:
    return (generation.cumulative_logprob or 0.0) / max(len(generation.token_ids), 1)
