"""The sampler as the engine sees it: logits in, one token per row out.

All arithmetic is in the native core (native/src/sampler.cpp; docs/sampling.md), one implementation
for every interpreter. This file compiles SamplingParams, and turns results into typed objects. It
knows no requests, schedules or tokenizers.

    logits [n, V]  +  one SamplerState per row  +  absolute position of the token to draw
        → SampledToken per row; then state.accept(token) once per token that stays in the output
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from headrace.engine.params import DEFAULT_STAGES, SamplingParams
from headrace.engine.trace import GridPoint, SamplerTrace, Snapshot, StageTrace
from headrace.native import _core
from headrace.native._core import Pool, SamplerState

# What the core returns. Of a row: logprob, rank, (id, logprob) of the top. At one point of a trace:
# candidates, entropy, tail mass, log normaliser, top, its logits. Of a step: before all stages;
# stage, active, after for each; temperature, entropy, log normaliser.
Score = tuple[float, int, list[tuple[int, float]]]
SnapshotTuple = tuple[int, float, float, float, list[tuple[int, float]], list[float]]
TraceTuple = tuple[
    SnapshotTuple, list[tuple[int, bool, SnapshotTuple]], list[tuple[float, float, float]]
]

__all__ = [
    "DraftedToken",
    "Drawn",
    "RowStatus",
    "SampledToken",
    "SamplerState",
    "TokenLogprobs",
    "TokenMask",
    "draw",
    "make_state",
    "new_seed",
    "sample",
    "token_logprobs",
]


class RowStatus(Enum):
    """Why a row could not be sampled. Such a row ends its request, and no other."""

    OK = 0
    NON_FINITE = 1  # a NaN, a +infinity, or no finite logit
    NO_CANDIDATES = 2  # everything with a finite logit is banned or not allowed


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """logprob: natural log, of the token asked about. rank: 1 = the highest; ties count lower ids
    first. top: (id, logprob), the k highest; equal floats for equal tokens."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """token: −1 unless status is OK. logprobs, trace: None unless the request asked for them."""

    token: int
    status: RowStatus
    logprobs: TokenLogprobs | None = None
    trace: SamplerTrace | None = None


def new_seed() -> int:
    """A 64-bit seed from the operating system."""
    return secrets.randbits(64)


def make_state(
    params: SamplingParams,
    prompt: Sequence[int] | npt.NDArray[np.int32],
    *,
    eos_ids: Sequence[int] = (),
    seed: int | None = None,
    sample_index: int = 0,
) -> SamplerState:
    """State of sample `sample_index` of a request. One thread at a time may use it.

    prompt: its token ids (the repetition penalty counts them). eos_ids: the model's end ids, held
    back like stop_token_ids until min_tokens. seed: the request's resolved seed; without one,
    params.seed, else one from the operating system. Read it back as `.seed`.
    """
    if seed is None:
        seed = new_seed() if params.seed is None else params.seed
    held_back = list(params.stop_token_ids) + ([] if params.ignore_eos else list(eos_ids))
    compiled = _core.SamplerParams(
        temperature=params.temperature,
        top_k=min(params.top_k, 2**62),
        top_p=params.top_p,
        min_p=params.min_p,
        typical_p=params.typical_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias=sorted((params.logit_bias or {}).items()),
        allowed=None if params.allowed_token_ids is None else list(params.allowed_token_ids),
        banned=list(params.banned_token_ids),
        min_tokens=min(params.min_tokens, 2**62),
        stop_ids=held_back if params.min_tokens else [],
        order=[DEFAULT_STAGES.index(stage) for stage in params.stages],
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
        processed_logprobs=params.logprobs_mode == "processed",
        trace=params.trace,
    )
    return SamplerState(compiled, seed, sample_index, np.ascontiguousarray(prompt, dtype=np.int32))


#: [at least num_ids / 32] uint32: an id may be drawn where bit id & 31 of word id >> 5 is set.
TokenMask = npt.NDArray[np.uint32]

#: A plain token where there is nothing more to say of the row.
Drawn = int | SampledToken

#: A drafted token with the ids and probabilities it was drawn from; None = it was certain.
DraftedToken = tuple[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]] | None]


def draw(
    logits: npt.NDArray[np.float32],
    states: Sequence[SamplerState],
    positions: Sequence[int],
    num_ids: int,
    pool: Pool | None = None,
    masks: Sequence[TokenMask | None] | None = None,
    drafts: Sequence[DraftedToken | None] | None = None,
) -> list[Drawn]:
    """Draws one token per row. Mutates nothing; call `accept` on the states yourself.

    logits: [n, V] float32, C-contiguous. positions: [n], absolute position of the token drawn =
    number of tokens before it. num_ids ≤ V: ids at and above it (a padded vocabulary) can never be
    drawn and have no part in any probability. pool: workers that share the rows; changes no bit.
    masks: None, or per row None or a TokenMask; what it leaves out is no candidate from the bias
    stage on. drafts: None, or per row None or a draft that the rejection rule decides on instead
    of a draw (speculation/rejection.py). Releases the interpreter lock.
    """
    draws: list[Drawn] = _core.sample(logits, states, positions, num_ids, pool, masks, drafts)
    for i, drawn in enumerate(draws):
        if isinstance(drawn, tuple):
            token, code, score, trace = drawn
            draws[i] = SampledToken(token, RowStatus(code), _logprobs(score), _trace(token, trace))
    return draws


def sample(
    logits: npt.NDArray[np.float32],
    states: Sequence[SamplerState],
    positions: Sequence[int],
    num_ids: int,
    pool: Pool | None = None,
    masks: Sequence[TokenMask | None] | None = None,
) -> list[SampledToken]:
    """`draw`, with every entry in its long form."""
    return [
        SampledToken(drawn, RowStatus.OK) if isinstance(drawn, int) else drawn
        for drawn in draw(logits, list(states), list(positions), num_ids, pool, masks)
    ]


def token_logprobs(
    logits: npt.NDArray[np.float32],
    targets: Sequence[int] | npt.NDArray[np.int32],
    top_n: int,
    num_ids: int,
    pool: Pool | None = None,
) -> list[TokenLogprobs | None]:
    """The model's own log-probability of targets[i] in row i, for prompt logprobs.

    logits: [n, V]; targets: [n] ids below num_ids. pool: as in `draw`. None where a row holds a
    NaN or an infinity.
    """
    ids = np.ascontiguousarray(targets, dtype=np.int32)
    return [_logprobs(score) for score in _core.token_logprobs(logits, ids, top_n, num_ids, pool)]


def _logprobs(score: Score | None) -> TokenLogprobs | None:
    if score is None:
        return None
    logprob, rank, top = score
    return TokenLogprobs(logprob, rank, tuple(top))


def _trace(token: int, trace: TraceTuple | None) -> SamplerTrace | None:
    if trace is None:
        return None
    model, records, grid = trace
    before = _snapshot(model)
    stages = []
    for stage, active, after_values in records:
        after = _snapshot(after_values) if active else before
        stages.append(StageTrace(DEFAULT_STAGES[stage], active, before, after))
        before = after
    return SamplerTrace(token, tuple(stages), tuple(GridPoint(*point) for point in grid))


def _snapshot(values: SnapshotTuple) -> Snapshot:
    num_candidates, entropy, tail_mass, log_normaliser, top, logits = values
    return Snapshot(num_candidates, entropy, tail_mass, tuple(top), log_normaliser, tuple(logits))
