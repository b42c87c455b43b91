"""Recall: facts that each sequence makes up, and questions about them.

    fact(k₁, v₁) fact(k₂, v₂) … fact(kₙ, vₙ)  question(k₅) question(k₂) …      scored: the answers

A fact is one token that stands for a key with a value, a question one that stands for a key; its
target is the value. Every sequence draws its own facts, so nothing can be learnt by heart: only
attention, by content, can answer. (The recall of Arora et al., arXiv:2312.04927, asks for pairs of
two tokens and so for two layers that work together, which takes millions of tokens to emerge; with
facts in one token it is learnt in seconds.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.lab.training.batch import TokenBatch

#: Batches of the validation set are those of steps that no training reaches.
_VALIDATION_STEP = 1 << 40


class RecallData:
    """Implements `Data`. Ids: keys · values facts (k · values + v), then the questions, then the
    values. facts: in every sequence, with different keys; as many questions follow, with
    repetition."""

    def __init__(
        self,
        *,
        batch: int,
        facts: int,
        keys: int,
        values: int,
        seed: int,
        validation_batches: int = 16,
    ) -> None:
        assert 0 < facts <= keys, "no more facts than keys"
        self._batch, self._facts, self._seed = batch, facts, seed
        self._keys, self._values = keys, values
        self._validation_batches = validation_batches

    @property
    def vocab_size(self) -> int:
        return self._keys * self._values + self._keys + self._values

    def batch(self, step: int) -> TokenBatch:
        """See `Data`."""
        return self._draw(np.random.default_rng((self._seed, step)))

    def validation(self) -> Iterator[TokenBatch]:
        """See `Data`: the same sequences for every seed of the training."""
        for step in range(self._validation_batches):
            yield self._draw(np.random.default_rng((_VALIDATION_STEP, step)))

    def _draw(self, rng: np.random.Generator) -> TokenBatch:
        count, n = self._batch, self._facts
        keys = rng.random((count, self._keys)).argsort(axis=1)[:, :n]
        values = rng.integers(0, self._values, (count, n))
        asked = rng.integers(0, n, (count, n))
        first_question = self._keys * self._values
        tokens = np.empty((count, 2 * n), np.int64)
        tokens[:, :n] = keys * self._values + values
        tokens[:, n:] = first_question + np.take_along_axis(keys, asked, axis=1)
        targets = np.full_like(tokens, -1)
        answers = np.take_along_axis(values, asked, axis=1)
        targets[:, n:] = first_question + self._keys + answers
        return TokenBatch(tokens, targets)
