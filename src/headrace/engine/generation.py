"""Request and Generation: the caller's side of a request, and the output side of each sample.

The scheduler never sees these. A Request is the handle that `Engine.add` returns; its generations
grow with every step and `output` turns them into a RequestOutput at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.engine.constraint import Constraint
from headrace.engine.outputs import (
    CompletionOutput,
    Delta,
    Logprob,
    LogprobEntry,
    RequestMetrics,
    RequestOutput,
)
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import Pooler
from headrace.engine.request import FinishReason, Sequence, Status
from headrace.engine.sampler import Drawn, RowStatus, SamplerState, TokenLogprobs
from headrace.engine.speculation.account import SpeculationAccount
from headrace.engine.speculation.choice import Choice
from headrace.engine.stopping import StopFilter
from headrace.engine.trace import SamplerTrace


class TextStream(Protocol):
    """Incremental detokenizer of one sample (formats.detokenizer.Detokenizer)."""

    def push(self, token_id: int) -> str:
        """Text that this token completes; never part of a character."""
        ...

    def finish(self) -> str:
        """The rest, at the end: an incomplete character becomes one U+FFFD."""
        ...


#: Text of one token by itself, for logprobs.
TokenText = Callable[[int], str]


class Generation:
    """One sample's output: text, logprobs, end. Mutated only by the engine's commit."""

    __slots__ = (
        "_counts",
        "_end_ids",
        "_has_stops",
        "_texts",
        "constraint",
        "cumulative_logprob",
        "error",
        "finish_reason",
        "index",
        "logprobs",
        "request",
        "sampler_state",
        "sequence",
        "stop_filter",
        "stop_reason",
        "stream",
        "token_ids",
        "trace",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        sequence: Sequence,
        sampler_state: SamplerState,
        stream: TextStream | None,
        constraint: Constraint | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self.index = index
        self.sequence = sequence
        self.sampler_state = sampler_state
        self.stream = stream
        self.constraint = constraint
        self.stop_filter = StopFilter(params.stop, params.include_stop_str_in_output)
        self.token_ids: list[int] = []
        self.logprobs: list[LogprobEntry] | None = None if params.logprobs is None else []
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.trace: list[SamplerTrace] | None = [] if params.trace else None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self._texts: list[str] = []
        self._has_stops = bool(params.stop)
        self._counts = params.counts_output
        self._end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self._end_ids |= request.eos_ids
        sequence.owner = self

    @property
    def is_corrupted(self) -> bool:
        """Whether it ended because the model gave logits that are not finite."""
        return self.error == _ROW_ERRORS[RowStatus.NON_FINITE]

    @property
    def text(self) -> str:
        """All text released so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    def accept(self, drawn: Drawn) -> Delta:
        """Appends a drawn token: ids, logprobs, text, stop checks. May set finish_reason."""
        entries = None
        if isinstance(drawn, int):
            token = drawn
        else:
            if drawn.status is not RowStatus.OK:
                return self.end(FinishReason.ERROR, self._row_error(drawn.status))
            token = drawn.token
            entries = self._note_logprobs(token, drawn.logprobs)
            if self.trace is not None and drawn.trace is not None:
                self.trace.append(drawn.trace)
        self.token_ids.append(token)
        sequence = self.sequence
        sequence.tokens.append(token)
        if self._counts:
            self.sampler_state.accept(token)
        text = self._advance_text(token)
        if self.constraint is not None and self.finish_reason is None:
            self._follow(self.constraint, token)
        if self.finish_reason is None and len(sequence.tokens) >= sequence.max_num_tokens:
            self.finish_reason = FinishReason.LENGTH
        if self.finish_reason is not None:
            text += self._rest()
        return self._delta(text, [token], entries)

    def end(self, reason: FinishReason, error: str | None = None) -> Delta:
        """Ends the sample without another token."""
        text = self._rest()
        self.finish_reason, self.stop_reason, self.error = reason, None, error
        return self._delta(text, [], None)

    def _note_logprobs(self, token: int, scores: TokenLogprobs | None) -> list[LogprobEntry] | None:
        if self.logprobs is None or scores is None:
            return None
        request = self.request
        entry = entry_of(token, scores, request.params.logprobs or 0, request.token_text)
        self.logprobs.append(entry)
        self.cumulative_logprob = (self.cumulative_logprob or 0.0) + scores.logprob
        return [entry]

    def _advance_text(self, token: int) -> str:
        if token in self._end_ids and not self._end_at(token):
            return ""
        if self.stream is None:
            return ""
        piece = self.stream.push(token)
        return self._filter(piece) if self._has_stops else piece

    def _end_at(self, token: int) -> bool:
        """Ends the sample at a stop or end id; whether the id's own text belongs to the output."""
        params = self.request.params
        stops = token in params.stop_token_ids
        self.finish_reason = FinishReason.STOP
        self.stop_reason = token if stops else None
        return stops and params.include_stop_str_in_output

    def _follow(self, constraint: Constraint, token: int) -> None:
        """Moves the constraint on by a token; ends the sample where it allows nothing more."""
        try:
            constraint.accept(token)
            if not constraint.finished:
                return
        except Exception as error:
            self.finish_reason, self.error = FinishReason.ERROR, constraint_error(error)
            return
        count, least = len(self.token_ids), self.request.params.min_tokens
        self.finish_reason = FinishReason.STOP
        if count < least:
            self.finish_reason = FinishReason.ERROR
            self.error = (
                f"min_tokens = {least} cannot be reached: the structured output is complete after "
                f"{count} tokens."
            )

    def _row_error(self, status: RowStatus) -> str:
        if status is RowStatus.NO_CANDIDATES and self.constraint is not None:
            return (
                "No token can be drawn: what the structured output allows is banned, not allowed "
                "or, as an end, held back by min_tokens."
            )
        return _ROW_ERRORS[status]

    def _filter(self, piece: str) -> str:
        text = self.stop_filter.push(piece)
        if self.stop_filter.matched is not None:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = self.stop_filter.matched
        return text

    def _rest(self) -> str:
        """Text still inside the detokenizer or held back; nothing after a matched stop string."""
        if self.stream is None or self.stop_filter.matched is not None:
            return ""
        text = self._filter(self.stream.finish())
        return text if self.stop_filter.matched is not None else text + self.stop_filter.flush()

    def _delta(self, text: str, tokens: list[int], logprobs: list[LogprobEntry] | None) -> Delta:
        if text:
            self._texts.append(text)
        request_id, reason = self.request.request_id, self.finish_reason
        if reason is None:
            return Delta(request_id, self.index, text, tokens, logprobs)
        return Delta(
            request_id,
            self.index,
            text,
            tokens,
            logprobs,
            reason.value,
            self.stop_reason,
            self.error,
        )

    def output(self) -> CompletionOutput:
        """A snapshot; lists are the live ones once finished, copies before."""
        reason = self.finish_reason
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(self.token_ids),
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            finish_reason=None if reason is None else reason.value,
            stop_reason=self.stop_reason,
            error=self.error,
            trace=None if self.trace is None else list(self.trace),
        )


class StepSums:
    """Sums over the steps that some requests took part in together."""

    __slots__ = ("bound_s", "step_s")

    def __init__(self) -> None:
        self.bound_s = 0.0
        self.step_s = 0.0


class Request:
    """Handle of an admitted request. Read it; only the engine writes.

    arrived_s … finished_s: monotonic clock, None until it happened. bound_s, step_s: limits and
    times of the steps it took part in, where the engine keeps an account with limits.
    """

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        seed: int,
        eos_ids: frozenset[int],
        token_text: TokenText | None,
        arrived_s: float,
        constraints: tuple[Constraint, ...] = (),
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.seed = seed
        self.eos_ids = eos_ids
        self.token_text = token_text
        self.constraints = constraints  # of every sample, in its first state; () = none
        self.generations: list[Generation] = []
        self.prompt_logprobs: list[LogprobEntry | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )
        self.pooler: Pooler | None = None  # of a request for a vector
        self.speculation: Choice | None = None  # of a request that speculates; and what it did
        self.speculation_account: SpeculationAccount | None = None
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.cache_note: str | None = None
        self.paused_s = 0.0  # up to the last note_pause
        self._paused_since: float | None = None
        self._earlier = StepSums()
        self._steps = StepSums()  # shared with all that take part in the same steps
        self.arrived_s = arrived_s
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.finished_s: float | None = None

    @property
    def num_cached_tokens(self) -> int:
        """Positions of the prompt that were not computed for it."""
        return self.generations[0].sequence.num_cached_tokens

    @property
    def reads_cache(self) -> bool:
        """Whether its prompt may start behind what is cached of it."""
        sequence = self.generations[0].sequence
        return sequence.salt is not None and sequence.anew_because is None

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return self.finished_s is not None

    def take_part(self, steps: StepSums) -> None:
        """From now on its steps are those that are summed up in `steps`."""
        self._earlier.bound_s += self._steps.bound_s
        self._earlier.step_s += self._steps.step_s
        self._steps = steps

    @property
    def bound_s(self) -> float:
        return self._earlier.bound_s + self._steps.bound_s

    @property
    def step_s(self) -> float:
        return self._earlier.step_s + self._steps.step_s

    @property
    def paused(self) -> bool:
        """Whether `Engine.pause` keeps it from advancing."""
        return any(g.sequence.status is Status.PAUSED for g in self.generations)

    def note_pause(self, now: float) -> None:
        """Adds up paused time; called after every change."""
        if self._paused_since is not None:
            self.paused_s += now - self._paused_since
        self._paused_since = now if self.paused else None

    @property
    def _undrawn_end_s(self) -> float | None:
        return self.finished_s if self.params.max_tokens == 0 else None

    def metrics(self) -> RequestMetrics:
        """The account so far."""
        return RequestMetrics(
            queue_s=_since(self.arrived_s, self.scheduled_s),
            prefill_s=_since(self.scheduled_s, self.first_token_s or self._undrawn_end_s),
            decode_s=_since(self.first_token_s, self.finished_s),
            time_to_first_token_s=_since(self.arrived_s, self.first_token_s),
            total_s=_since(self.arrived_s, self.finished_s),
            paused_s=self.paused_s,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_output_tokens=sum(len(g.token_ids) for g in self.generations),
            num_cached_tokens=self.num_cached_tokens,
            num_computed_tokens=self.num_computed_tokens,
            num_preemptions=self.num_preemptions,
            cache_note=self.cache_note,
            bound_s=self.bound_s or None,
            step_s=self.step_s or None,
            speculation=self.speculation_account,
        )

    def output(self) -> RequestOutput:
        """What the request has produced so far, samples in index order."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[g.output() for g in self.generations],
            prompt_logprobs=self.prompt_logprobs,
            embedding=None if self.pooler is None else self.pooler.vector,
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
            seed=self.seed,
            metrics=self.metrics(),
        )


def generation_of(sequence: Sequence) -> Generation:
    """The output side of a sequence that the engine has made."""
    owner = sequence.owner
    assert isinstance(owner, Generation)
    return owner


def constraint_error(error: Exception) -> str:
    """What a sample ends with when its constraint fails."""
    return f"The structured output cannot go on: {error}"


def _since(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def entry_of(
    token: int, scores: TokenLogprobs, num_top: int, token_text: TokenText | None
) -> LogprobEntry:
    """The chosen token and the num_top most probable, id → Logprob; the chosen one comes first."""

    def text(token_id: int) -> str | None:
        return None if token_text is None else token_text(token_id)

    entry = {token: Logprob(scores.logprob, scores.rank, text(token))}
    for rank, (token_id, logprob) in enumerate(scores.top[:num_top], start=1):
        if token_id != token:
            entry[token_id] = Logprob(logprob, rank, text(token_id))
    return entry


def is_request_fault(error: str) -> bool:
    """Whether a sample's error is the request's own doing: its grammar, its banned ids, its limits
    against each other. Any other is the model's or the engine's."""
    return error.startswith(_REQUEST_FAULTS)


_REQUEST_FAULTS = ("No token can be drawn:", "The structured output", "min_tokens =")
_ROW_ERRORS = {
    RowStatus.NON_FINITE: "The model gave logits that are not finite; no token can be drawn.",
    RowStatus.NO_CANDIDATES: "No token can be drawn: every candidate is banned or not allowed.",
}
