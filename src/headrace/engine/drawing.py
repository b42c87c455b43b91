"""What the step loop asks of a sampler and of a detokenizer, as protocols.

The engine's own sampler is `sampler.py` (native code), its detokenizer `formats/`; tests may bring
toys. A draw of one row never depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.engine.params import SamplingParams

Logits = npt.NDArray[np.float32]


class SamplerState(Protocol):
    """What a draw depends on besides the logits: parameters, seed, sample index, token counts."""

    def accept(self, token: int) -> None:
        """Counts one output token."""
        ...

    def fork(self, sample_index: int) -> SamplerState:
        """The same request and history under another sample index."""
        ...


class Drawn(Protocol):
    """One row's result. error: None, or why the row cannot be sampled (token is then −1).

    logprob and rank of the token, top: (id, logprob) of the highest, descending; filled when
    logprobs were asked for. trace: the sampler trace of the step, or None.
    """

    @property
    def error(self) -> str | None: ...
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def rank(self) -> int: ...
    @property
    def top(self) -> Sequence[tuple[int, float]]: ...
    @property
    def trace(self) -> object | None: ...


class Sampler(Protocol):
    """Draws tokens from logits. One thread at a time."""

    def new_state(
        self, params: SamplingParams, prompt: Sequence[int], seed: int, stop_ids: Sequence[int]
    ) -> SamplerState:
        """State of sample 0. stop_ids: ids that params.min_tokens forbids at first."""
        ...

    def sample(
        self, logits: Logits, states: Sequence[SamplerState], positions: Sequence[int]
    ) -> Sequence[Drawn]:
        """One draw per row. logits: float32 [n, V]; positions: absolute positions of the tokens
        drawn, [n]. Changes neither logits nor states."""
        ...

    def score(self, logits: Logits, tokens: Sequence[int], num_top: int) -> Sequence[Drawn]:
        """The model's own logprob of tokens[i] in row i, with the num_top highest."""
        ...


class TextStream(Protocol):
    """Incremental detokenizer of one sample."""

    def push(self, token_id: int) -> str:
        """Text that this token completes; never part of a character."""
        ...

    def finish(self) -> str:
        """The rest, at the end: an incomplete character becomes one U+FFFD."""
        ...
