"""TokenBatch: what one training or validation step is given, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """tokens: int64 [B, T]. targets: int64 [B, T], the token after each; −1 = not scored."""

    tokens: Ids
    targets: Ids

    def __post_init__(self) -> None:
        assert self.tokens.ndim == 2, "tokens are [B, T]"
        assert self.tokens.shape == self.targets.shape, "a target for every token"


class Data(Protocol):
    """A training and a validation set. Both are functions of what the set was built with: the same
    step gives the same batch, in any order of asking."""

    def batch(self, step: int) -> TokenBatch:
        """The batch of training step 0, 1, …"""
        ...

    def validation(self) -> Iterator[TokenBatch]:
        """The whole validation set, always the same; nothing of it is ever trained on."""
        ...


def windows(ids: Ids) -> TokenBatch:
    """ids [B, T + 1] → inputs and targets: the same tokens, one position apart."""
    return TokenBatch(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))
