"""One request as a client sees it: (time, event) pairs in, a record with its times out. Pure.

Times are whole nanoseconds of one monotonic clock that the caller reads; nothing here waits or
asks what time it is, so a test with a clock of its own gets exact figures.

    start            arrivals (instants at which tokens came)             end
    │                │    │    │    │                                     │
    ├── TTFT ────────┤gap │gap │gap │ …                                   │
    ├── E2EL ─────────────────────────────────────────────────────────────┤
                     ├── (E2EL − TTFT) / tokens after the first arrival ──┤ = TPOT

- A token is content, reasoning, refusal or a piece of a tool call that is not empty, or a usage
  count that grew; the chunk that only names the role is none.
- What is read at the same instant is one arrival, however many chunks it took: TCP keeps no
  borders. An arrival of k tokens after a gap g gives k inter-token latencies of g/k.
- Tokens are counted by the server: per chunk where every chunk carries usage, else the total of
  the answer spread over its chunks. Never by tokenising the text again.
- The end is the last chunk that carries tokens or a finish reason; usage and [DONE] come after.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

from headrace.bench.serve.failures import Failure, RequestFailed

DONE = b"[DONE]"
#: More arrivals than any answer has; a server that sends more is not answering.
MAX_ARRIVALS = 1 << 20
#: Where a chunk of a chat carries what a model generated.
_DELTA_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class TokenSource(Enum):
    """Where the number of output tokens comes from."""

    CONTINUOUS = "usage in every chunk"
    TOTAL = "usage at the end"
    CHUNKS = "chunks counted: the server reports no usage"


@dataclass(frozen=True, slots=True)
class Record:
    """What one request came to. Times in ns of the run's clock; start_ns: just before the request
    was written; scheduled_ns: when it was due (None = when the one before had ended). failure: its
    label, None = complete. num_prompt and max_tokens: asked for; the counts of the server beside
    them are None where it gave none. first_tokens: tokens of the first arrival."""

    index: int
    scheduled_ns: int | None
    start_ns: int
    end_ns: int
    arrivals_ns: array[int]
    arrival_tokens: tuple[float, ...]
    num_output: float
    max_tokens: int | None
    num_prompt: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    token_source: TokenSource
    done_seen: bool
    failure: str | None = None
    detail: str = ""

    @property
    def ttft_ns(self) -> int | None:
        """None without a token."""
        return self.arrivals_ns[0] - self.start_ns if self.arrivals_ns else None

    @property
    def e2el_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def tpot_ns(self) -> float | None:
        """None when all tokens came at once: there is no time between them to speak of."""
        if not self.arrivals_ns:
            return None
        after = self.num_output - self.arrival_tokens[0]
        return (self.end_ns - self.arrivals_ns[0]) / after if after > 0 else None

    def gaps_ns(self) -> list[int]:
        """Between arrivals."""
        times = self.arrivals_ns
        return [b - a for a, b in pairwise(times)]

    def itl_ns(self) -> list[float]:
        """One value per token after the first arrival."""
        values: list[float] = []
        for gap, tokens in zip(self.gaps_ns(), self.arrival_tokens[1:], strict=True):
            if tokens == 1:
                values.append(gap)
            else:
                values += [gap / tokens] * max(1, round(tokens))
        return values


@dataclass(slots=True)
class RequestTimeline:
    """Collects one request. `started`, then `event` for each, then `ended`, or `failed` at any
    point; `record` at last. A second `started` (the request is sent again) forgets the first."""

    index: int
    max_tokens: int | None = None
    num_prompt: int | None = None
    scheduled_ns: int | None = None
    start_ns: int = 0
    end_ns: int = 0
    _arrivals: array[int] = field(default_factory=lambda: array("q"))
    _chunks: list[int] = field(default_factory=list)  # with tokens, of each arrival
    _counted: list[int] = field(default_factory=list)  # usage at each arrival, −1 = not said
    _usage: dict[str, Any] = field(default_factory=dict)
    _last_count: int = 0
    _open: set[int] = field(default_factory=set)  # choices that have not finished
    _finish_reason: str | None = None
    _done: bool = False
    _failure: RequestFailed | None = None

    def started(self, now_ns: int) -> None:
        """The request is about to be written."""
        self.start_ns = self.end_ns = now_ns
        self._arrivals = array("q")
        self._chunks.clear()
        self._counted.clear()
        self._open.clear()
        self._last_count = 0

    def event(self, now_ns: int, data: bytes) -> None:
        """The data of one server-sent event. Raises RequestFailed for an error object, for what is
        no chunk, and for an answer without end."""
        if data == DONE:
            self._done = True
            return
        try:
            chunk = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise RequestFailed(Failure.BAD_CHUNK, f"no JSON: {data[:80]!r}") from None
        if not isinstance(chunk, dict):
            raise RequestFailed(Failure.BAD_CHUNK, f"no JSON object: {data[:80]!r}")
        if error := chunk.get("error") or (chunk.get("object") == "error" and chunk):
            raise RequestFailed(Failure.ERROR_CHUNK, error_message(error))
        usage = chunk.get("usage")
        count = -1
        if isinstance(usage, dict):
            self._usage = usage
            count = _count(usage, "completion_tokens", -1)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return  # usage, or something of the server's own
        tokens = count > self._last_count
        for choice in choices:
            if isinstance(choice, dict):
                tokens = self._choice(choice) or tokens
        if tokens:
            self._arrival(now_ns, count)
            self._last_count = max(count, self._last_count)
        if tokens or not self._open:
            self.end_ns = now_ns

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Whether it carries a token."""
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish_reason = reason
            self._open.discard(index)
        else:
            self._open.add(index)
        if choice.get("text"):
            return True
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return False
        if delta.get("content"):  # by far the most frequent
            return True
        return any(delta.get(name) for name in _DELTA_TEXTS) or _has_call(delta)

    def _arrival(self, now_ns: int, count: int) -> None:
        if self._arrivals and self._arrivals[-1] == now_ns:
            self._chunks[-1] += 1
            self._counted[-1] = count
            return
        if len(self._arrivals) >= MAX_ARRIVALS:
            raise RequestFailed(Failure.TOO_LARGE, f"an answer of more than {MAX_ARRIVALS} chunks")
        self._arrivals.append(now_ns)
        self._chunks.append(1)
        self._counted.append(count)

    @property
    def done(self) -> bool:
        """[DONE] has come."""
        return self._done

    def ended(self) -> None:
        """The response is complete. Raises RequestFailed when it says no finish reason, or had no
        token."""
        if self._finish_reason is None or self._open:
            raise RequestFailed(
                Failure.NO_FINISH_REASON,
                f"the stream ended after {len(self._arrivals)} chunks with tokens, and no chunk "
                f"gave a finish reason",
            )
        if not self._arrivals:
            raise RequestFailed(
                Failure.NO_TOKENS, f"finish reason {self._finish_reason!r} and no token"
            )

    def failed(self, now_ns: int, failure: RequestFailed) -> None:
        """The request is over without a whole answer."""
        self.end_ns = now_ns
        self._failure = failure

    def record(self) -> Record:
        """What it came to."""
        total = _count(self._usage, "completion_tokens", -1)
        tokens, source = _spread(self._chunks, self._counted, total)
        details = self._usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens", -1) if isinstance(details, dict) else -1
        prompt = _count(self._usage, "prompt_tokens", -1)
        return Record(
            index=self.index,
            scheduled_ns=self.scheduled_ns,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            arrivals_ns=self._arrivals,
            arrival_tokens=tokens,
            num_output=total if source is not TokenSource.CHUNKS else sum(self._chunks),
            max_tokens=self.max_tokens,
            num_prompt=self.num_prompt,
            prompt_tokens=prompt if prompt >= 0 else None,
            cached_tokens=cached if cached >= 0 else None,
            finish_reason=self._finish_reason,
            token_source=source,
            done_seen=self._done,
            failure=self._failure.label if self._failure else None,
            detail=self._failure.detail if self._failure else "",
        )


def error_message(error: object) -> str:
    """The text of an OpenAI error object, or of what a server sent instead; one line, and nothing
    in it that a terminal would obey."""
    message = error.get("message", error) if isinstance(error, dict) else error
    line = " ".join(str(message).split())[:400]
    return "".join(c if c.isprintable() else "\ufffd" for c in line)


def error_message_of(body: bytes) -> str:
    """The text of a refused request's body."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return error_message(body[:400].decode("utf-8", "replace"))
    if isinstance(answer, dict):
        return error_message(answer.get("error", answer.get("detail", answer)))
    return error_message(answer)


def _spread(
    chunks: list[int], counted: list[int], total: int
) -> tuple[tuple[float, ...], TokenSource]:
    """Tokens of each arrival. Their sum may be one less than the total: an end of text that is
    counted and never shown comes with the finish reason, not with an arrival."""
    if total <= 0:
        return tuple(map(float, chunks)), TokenSource.CHUNKS
    steps = [b - a for a, b in zip((0, *counted), counted, strict=False)]
    if steps and min(counted) >= 0 and min(steps) > 0:
        return tuple(map(float, steps)), TokenSource.CONTINUOUS
    num_chunks = sum(chunks)
    each = 1.0 if total - num_chunks in (0, 1) else total / max(num_chunks, 1)
    return tuple(each * n for n in chunks), TokenSource.TOTAL


def _count(usage: dict[str, Any], name: str, default: int) -> int:
    value = usage.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if good and isinstance(value, int) else default


def _has_call(delta: dict[str, Any]) -> bool:
    """A tool call's name, arguments or id is a token, an empty skeleton is not."""
    calls = delta.get("tool_calls")
    candidates = calls if isinstance(calls, list) else []
    functions = [call.get("function") for call in candidates if isinstance(call, dict)]
    functions.append(delta.get("function_call"))
    return any(
        isinstance(function, dict) and bool(function.get("name") or function.get("arguments"))
        for function in functions
    )
