"""Requests ready to be written: a prompt becomes the bytes of a body before the run starts.

Which usage to ask for is negotiated: counts in every chunk, else only at the end, else none; a
server that refuses an option by name gets the next smaller one, and the report says which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace.bench.serve.dataset import Prompt
from headrace.errors import UsageError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ENDPOINTS = (COMPLETIONS, CHAT)


class UsageOption(Enum):
    """What `stream_options` asks for: the end of every body."""

    CONTINUOUS = ',"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
    TOTAL = ',"stream_options":{"include_usage":true}}'
    NONE = "}"

    @property
    def words(self) -> tuple[str, ...]:
        """A refusal that names one of them means this option."""
        return {
            UsageOption.CONTINUOUS: ("continuous_usage_stats", "stream_options"),
            UsageOption.TOTAL: ("stream_options", "include_usage"),
            UsageOption.NONE: (),
        }[self]


@dataclass(frozen=True, slots=True)
class Job:
    """One request. body: JSON without its closing brace. due_s: offset from the start of an open
    loop (None = as soon as a place is free)."""

    index: int
    body: bytes
    num_prompt: int | None
    max_tokens: int | None
    due_s: float | None = None


@dataclass(slots=True)
class Negotiation:
    """The usage option that this server takes, as far as it is known."""

    option: UsageOption = UsageOption.CONTINUOUS
    refused: list[str] = field(default_factory=list)

    def whole(self, job: Job) -> bytes:
        """The job's body with the option."""
        return job.body + self.option.value.encode()

    def lower(self, sent: UsageOption, answer: str) -> bool:
        """After a 400: whether the answer is about the option that was sent, so that sending again
        with less makes sense."""
        if not any(word in answer for word in sent.words):
            return False
        if self.option is sent:
            both = "stream_options" in answer and "continuous_usage_stats" not in answer
            last = sent is UsageOption.TOTAL or both
            self.option = UsageOption.NONE if last else UsageOption.TOTAL
            self.refused.append(sent.name.lower())
        return True


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """What every request of a run has in common. ignore_eos: None leaves the field out."""

    endpoint: str
    model: str
    temperature: float = 0.0
    ignore_eos: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.endpoint not in ENDPOINTS:
            raise UsageError(
                f"--endpoint must be one of {', '.join(ENDPOINTS)}, not {self.endpoint!r}."
            )
        if owned := {"stream", "stream_options", "prompt", "messages"} & set(self.extra):
            raise UsageError(f"--extra-body cannot set {', '.join(sorted(owned))}.")


def make_jobs(
    prompts: Sequence[Prompt], options: BodyOptions, due_s: Sequence[float] | None = None
) -> list[Job]:
    """One job per prompt. Raises UsageError for messages on an endpoint that takes none, ids on
    one that takes only text, and what is no Unicode."""
    times: Sequence[float | None] = due_s or [None] * len(prompts)
    return [
        Job(index, _body(prompt, options), prompt.num_prompt, prompt.max_tokens, due)
        for index, (prompt, due) in enumerate(zip(prompts, times, strict=True))
    ]


def _body(prompt: Prompt, options: BodyOptions) -> bytes:
    fields: dict[str, Any] = {"model": options.model}
    content = prompt.content
    if options.endpoint == CHAT:
        if isinstance(content, list) and not prompt.is_chat:
            raise UsageError(f"{CHAT} takes no token ids; use --endpoint {COMPLETIONS}.")
        fields["messages"] = (
            [{"role": "user", "content": content}] if isinstance(content, str) else content
        )
    else:
        if prompt.is_chat:
            raise UsageError(f"{COMPLETIONS} takes no messages; use --endpoint {CHAT}.")
        fields["prompt"] = content
    if prompt.max_tokens is not None:
        fields["max_tokens"] = prompt.max_tokens
    fields["temperature"] = options.temperature
    if options.ignore_eos is not None:
        fields["ignore_eos"] = options.ignore_eos
    fields |= options.extra
    fields["stream"] = True
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()[:-1]
    except UnicodeEncodeError as error:
        around = text[max(error.start - 20, 0) : error.end + 20]
        raise UsageError(f"A request cannot be written as UTF-8: {around!a}.") from None
