"""Recall: pairs of key and value that come again, and the value must be remembered.

    k₁ v₁ k₂ v₂ k₁ v₁ k₃ v₃ k₂ v₂ …      scored: every value whose key was seen before

Every sequence has its own pairs, drawn at random: nothing can be learnt by heart, so only attention
can answer (a multi-query form of associative recall: Arora et al., arXiv:2312.04927).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.lab.training.batch import Ids, TokenBatch

#: Batches of the validation set are those of steps that no training reaches.
_VALIDATION_STEP = 1 << 40


class RecallData:
    """Implements `Data`. Ids 0 … keys − 1 are keys, the next `values` ids values. pairs: different
    keys in one sequence; length: its tokens, even."""

    def __init__(
        self,
        *,
        batch: int,
        length: int,
        pairs: int,
        keys: int,
        values: int,
        seed: int,
        validation_batches: int = 16,
    ) -> None:
        assert length % 2 == 0, "pairs have two tokens"
        assert 0 < pairs <= keys, "no more pairs than keys"
        self._batch, self._length, self._pairs = batch, length, pairs
        self._keys, self._values, self._seed = keys, values, seed
        self._validation_batches = validation_batches

    @property
    def vocab_size(self) -> int:
        return self._keys + self._values

    def batch(self, step: int) -> TokenBatch:
        """See `Data`."""
        return self._draw(np.random.default_rng((self._seed, step)))

    def validation(self) -> Iterator[TokenBatch]:
        """See `Data`: the same sequences for every seed of the training."""
        for step in range(self._validation_batches):
            yield self._draw(np.random.default_rng((_VALIDATION_STEP, step)))

    def _draw(self, rng: np.random.Generator) -> TokenBatch:
        count, half = self._batch, self._length // 2
        keys = rng.random((count, self._keys)).argsort(axis=1)[:, : self._pairs]
        values = self._keys + rng.integers(0, self._values, (count, self._pairs))
        most = rng.integers(1, self._pairs + 1, (count, 1))  # some sequences are easy
        which = rng.integers(0, most, (count, half))
        tokens = np.empty((count, self._length), np.int64)
        tokens[:, 0::2] = np.take_along_axis(keys, which, axis=1)
        tokens[:, 1::2] = np.take_along_axis(values, which, axis=1)
        targets = np.full_like(tokens, -1)
        targets[:, 0::2] = np.where(_seen(which), tokens[:, 1::2], -1)
        return TokenBatch(tokens, targets)


def _seen(which: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[B, N]: whether the same number stands further left in its row."""
    order = np.argsort(which, axis=1, kind="stable")
    inside = np.take_along_axis(which, order, axis=1)
    again = np.zeros(which.shape, bool)
    again[:, 1:] = inside[:, 1:] == inside[:, :-1]
    seen = np.empty_like(again)
    np.put_along_axis(seen, order, again, axis=1)
    return seen
