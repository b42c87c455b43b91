"""Batch: one ragged step as an explicit value. No padding, no global context.

    requests      r0           r1      r2
    rows        0 1 2 3 4  |  5  |  6 7 8        T = 9
    spans       0             5     6       9    [R + 1]

Every array is C-contiguous int32. The engine builds it and interpreters read it;
programs never see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """The step as one KV group sees it.

    slots: [T]; block · block_size + offset where row t's key and value go, −1 = not stored.
    block_tables: [R, C]; column c holds the block of positions [c·B, (c+1)·B), absolute; −1 where
    freed or not allocated, never dereferenced. first_pos: [R]; oldest position still held.
    state_slots: [R] for recurrent groups, else None.
    """

    slots: Int32Array
    block_tables: Int32Array
    first_pos: Int32Array
    state_slots: Int32Array | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """T new tokens of R requests.

    tokens: [T] ids. positions: [P, T], P = 1 today. spans: [R + 1], row borders of the requests.
    context_lens: [R], positions known after this step (computed before + new).
    logit_rows: rows whose logits the step returns, for sampling. prompt_rows: rows whose logits are
    wanted for prompt logprobs; they are computed a few at a time after the step.
    """

    tokens: Int32Array
    positions: Int32Array
    spans: Int32Array
    context_lens: Int32Array
    logit_rows: Int32Array
    prompt_rows: Int32Array
    groups: tuple[GroupBatch, ...]

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def num_requests(self) -> int:
        return int(self.context_lens.shape[0])
