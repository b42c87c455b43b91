"""A text as training data: split, tokenizer, windows.

    text ─ split by position ─┬─ training pieces ─ tokenizer is trained on them ─ random windows
                              └─ validation pieces ─ every window once

The text is cut into equal parts at paragraph borders, and the end of each part is for validation:
so both sets come from everywhere in the text, and no character is in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write
from headrace.lab.training.batch import Ids, TokenBatch, windows

#: The token that ends a text.
END = "<|end|>"


def split_text(text: str, *, parts: int = 20, share: float = 0.1) -> tuple[list[str], list[str]]:
    """(training pieces, validation pieces). share: of every part, at its end. Pieces are in order
    and together they are the text."""
    borders = _paragraph_borders(text, parts, share)
    pieces = [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
    return [p for p in pieces[0::2] if p], [p for p in pieces[1::2] if p]


def _paragraph_borders(text: str, parts: int, share: float) -> list[int]:
    """Where training ends and validation ends, in turn; each after an empty line, if there is one
    before the next border."""
    size = len(text) / parts
    wanted = [round(size * (i + end)) for i in range(parts) for end in (1 - share, 1)][:-1]
    borders = []
    for at, limit in zip(wanted, [*wanted[1:], len(text)], strict=True):
        found = text.find("\n\n", at, limit)
        borders.append(at if found < 0 else found + 2)
    return borders


def train_tokenizer(pieces: Sequence[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of exactly vocab_size ids, END among them; every text can be encoded.
    Raises UsageError when the text has too few different words for so many."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(END, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise UsageError(
            f"The text gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}; take a longer "
            "text or a smaller vocabulary."
        )
    return tokenizer


@dataclass(frozen=True, slots=True)
class TextTokens:
    """Both sets as runs of token ids. num_bytes: UTF-8 length of the validation text, for bits per
    byte."""

    train: list[Ids]
    validation: list[Ids]
    validation_bytes: int

    @property
    def num_train(self) -> int:
        return sum(map(len, self.train))

    @property
    def num_validation(self) -> int:
        return sum(map(len, self.validation))

    def save(self, path: Path) -> None:
        """One .npz without pickled objects; appears as a whole."""
        arrays = {f"train{i}": run for i, run in enumerate(self.train)}
        arrays |= {f"validation{i}": run for i, run in enumerate(self.validation)}
        with atomic_write(path) as file:
            np.savez(file, bytes=np.array(self.validation_bytes), **arrays)  # type: ignore[arg-type]


def tokenize(text: str, vocab_size: int) -> tuple[TextTokens, Tokenizer]:
    """Splits, trains a tokenizer on the training pieces, encodes both sets."""
    train, validation = split_text(text)
    tokenizer = train_tokenizer(train, vocab_size)
    runs = [
        [np.array(e.ids, np.int64) for e in tokenizer.encode_batch(pieces)]
        for pieces in (train, validation)
    ]
    return TextTokens(runs[0], runs[1], sum(len(p.encode()) for p in validation)), tokenizer


def load_tokens(path: Path) -> TextTokens:
    """What `TextTokens.save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        runs = [
            [file[f"{name}{i}"] for i in range(sum(k.startswith(name) for k in file.files))]
            for name in ("train", "validation")
        ]
        return TextTokens(runs[0], runs[1], int(file["bytes"]))


class TextData:
    """Implements `Data`: training batches of windows at random places, validation windows side by
    side. batch: sequences; length: tokens of each."""

    def __init__(
        self,
        tokens: TextTokens,
        *,
        batch: int,
        length: int,
        seed: int,
        max_validation: int | None = None,
    ) -> None:
        """max_validation: tokens at most, spread over the set. Raises UsageError when no window
        fits."""
        self._batch, self._length, self._seed = batch, length, seed
        self._train = np.concatenate(tokens.train)
        self._starts = _starts([len(run) for run in tokens.train], length + 1, stride=1)
        flat = np.concatenate(tokens.validation)
        starts = _starts([len(run) for run in tokens.validation], length + 1, stride=length)
        if not len(self._starts) or not len(starts):
            raise UsageError(f"The text is too short for windows of {length} tokens.")
        if max_validation is not None and len(starts) * length > max_validation:
            count = max(1, max_validation // length)
            starts = starts[np.linspace(0, len(starts) - 1, count).astype(np.int64)]
        self._validation = flat[starts[:, None] + np.arange(length + 1)]

    def batch(self, step: int) -> TokenBatch:
        """See `Data`."""
        rng = np.random.default_rng((self._seed, step))
        starts = self._starts[rng.integers(0, len(self._starts), self._batch)]
        return windows(self._train[starts[:, None] + np.arange(self._length + 1)])

    def validation(self) -> Iterator[TokenBatch]:
        """See `Data`."""
        for at in range(0, len(self._validation), self._batch):
            yield windows(self._validation[at : at + self._batch])


def _starts(lengths: Sequence[int], size: int, stride: int) -> Ids:
    """Where windows of `size` tokens begin in the joined runs; none crosses from run to run."""
    found, offset = [], 0
    for length in lengths:
        found.append(offset + np.arange(0, length - size + 1, stride, dtype=np.int64))
        offset += length
    return np.concatenate(found) if found else np.zeros(0, np.int64)
