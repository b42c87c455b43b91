# Types of the native core. What is not listed yet is Any.
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# ---- sampling (bind_sampler.cpp) ----------------------------------------------------------------

Score = tuple[float, int, list[tuple[int, float]]]  # logprob, rank, [(id, logprob)]
# candidates, entropy, tail mass, [(id, probability)]
SnapshotTuple = tuple[int, float, float, list[tuple[int, float]]]
TraceTuple = tuple[SnapshotTuple, list[tuple[int, bool, SnapshotTuple]]]

class SamplerParams:
    def __init__(
        self,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        typical_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        bias: Sequence[tuple[int, float]],
        allowed: Sequence[int] | None,
        banned: Sequence[int],
        min_tokens: int,
        stop_ids: Sequence[int],
        order: Sequence[int],
        num_logprobs: int,
        processed_logprobs: bool,
        trace: int,
    ) -> None: ...

class SamplerState:
    def __init__(
        self,
        params: SamplerParams,
        seed: int,
        sample_index: int,
        prompt: npt.NDArray[np.int32],
    ) -> None: ...
    def accept(self, token: int) -> None: ...
    def fork(self, sample_index: int) -> SamplerState: ...
    @property
    def seed(self) -> int: ...
    @property
    def sample_index(self) -> int: ...
    @property
    def num_output(self) -> int: ...

def sample(
    logits: npt.NDArray[np.float32],
    states: Sequence[SamplerState],
    positions: npt.NDArray[np.int64],
    num_ids: int,
) -> tuple[
    npt.NDArray[np.int32], npt.NDArray[np.int32], list[Score | None], list[TraceTuple | None]
]: ...
def token_logprobs(
    logits: npt.NDArray[np.float32], targets: npt.NDArray[np.int32], top_n: int, num_ids: int
) -> tuple[npt.NDArray[np.int32], list[Score | None]]: ...
def philox(counter: Sequence[int], key: int) -> list[int]: ...
def gumbel(word: int) -> float: ...
def exp_nonpositive(x: float) -> float: ...
def natural_log(x: float) -> float: ...
def __getattr__(name: str) -> Any: ...
