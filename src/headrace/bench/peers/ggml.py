"""llama.cpp and its fork, driven at their lowest level: one `llama_decode` per step.

The loop of llama-batched-bench, except that the tokens fed are those drawn: the prompts of a batch
go in as sub-batches of at most `num_batch` tokens, then each step carries one token of every
sequence. Logits come back for the rows that draw, and the argmax is numpy's, over the library's own
memory (faster than the libraries' greedy samplers, which first build a list of candidates).
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from headrace.bench.peers.peer import CannotRun, Ids, Load, Measured

#: Logical batch size, llama.cpp's own default.
NUM_BATCH = 2048
#: Physical batch size, llama.cpp's own default.
NUM_UBATCH = 512


class Stepper:
    """A context and the batch that is fed to it. library: the ctypes module."""

    def __init__(self, library: ModuleType, context: Any, vocab_size: int) -> None:
        self.context = context
        self._library = library
        self._vocab_size = vocab_size
        self._batch = library.llama_batch_init(NUM_BATCH, 0, 1)
        as_array = np.ctypeslib.as_array
        self._tokens = as_array(self._batch.token, (NUM_BATCH,))
        self._positions = as_array(self._batch.pos, (NUM_BATCH,))
        self._wants = as_array(self._batch.logits, (NUM_BATCH,))
        as_array(self._batch.n_seq_id, (NUM_BATCH,))[:] = 1

    def step(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """rows: (token, position, sequence, draws), at most NUM_BATCH. The argmax of each row that
        draws, in their order."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, draws) in enumerate(rows):
            self._tokens[i] = token
            self._positions[i] = position
            self._wants[i] = draws
            batch.seq_id[i][0] = sequence
        code = self._library.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return [self._argmax(i) for i, row in enumerate(rows) if row[3]]

    def _argmax(self, row: int) -> int:
        logits = self._library.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def prompts(self, prompts: Sequence[Ids]) -> list[int]:
        """Feeds whole prompts, sequence i = prompt i; the token drawn from each."""
        rows = [
            (token, position, sequence, position == len(ids) - 1)
            for sequence, ids in enumerate(prompts)
            for position, token in enumerate(ids)
        ]
        drawn: list[int] = []
        for start in range(0, len(rows), NUM_BATCH):
            drawn += self.step(rows[start : start + NUM_BATCH])
        return drawn


class GgmlPeer(ABC):
    """The three measurements over two contexts: one for one sequence, one for batches.

    title: what errors call the engine. library: its ctypes module, with llama.cpp's functions.
    """

    def __init__(self, title: str, library: ModuleType) -> None:
        self._title = title
        self._library = library

    def open(self, load: Load, model_params: Any) -> None:
        """Loads the model and makes both contexts. Raises CannotRun."""
        library = self._library
        library.llama_backend_init()
        model = library.llama_model_load_from_file(one_file(load.model), model_params)
        if not model:
            raise CannotRun(f"{self._title} cannot load this file.")
        self._single = self._stepper(model, load.num_threads, 1, load.max_context)
        self._many = self._stepper(model, load.num_threads, load.num_sequences, load.batch_context)

    def _stepper(self, model: Any, num_threads: int, num_sequences: int, context: int) -> Stepper:
        library = self._library
        params = library.llama_context_default_params()
        params.n_ctx = num_sequences * context
        params.n_batch = NUM_BATCH
        params.n_ubatch = NUM_UBATCH
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = num_threads
        self._tune(params)
        made = library.llama_init_from_model(model, params)
        if not made:
            raise CannotRun(f"{self._title} cannot make a context of this size.")
        vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        return Stepper(library, made, vocab_size)

    @abstractmethod
    def _tune(self, params: Any) -> None:
        """Sets the engine's best flags in the parameters of a context."""

    @abstractmethod
    def _clear(self, context: Any) -> None:
        """Empties a context's cache."""

    def prefill(self, ids: Ids) -> Measured:
        self._clear(self._single.context)
        begin = time.perf_counter()
        drawn = self._single.prompts([ids])
        return Measured(time.perf_counter() - begin, drawn)

    def decode(self, ids: Ids, n: int) -> Measured:
        self._clear(self._single.context)
        tokens = self._single.prompts([ids])
        begin = time.perf_counter()
        for i in range(n):
            tokens += self._single.step([(tokens[-1], len(ids) + i, 0, True)])
        return Measured(time.perf_counter() - begin, tokens)

    def batch(self, prompts: Sequence[Ids], n: int) -> Measured:
        self._clear(self._many.context)
        begin = time.perf_counter()
        drawn = self._many.prompts(prompts)
        first = [drawn[0]]
        for i in range(n - 1):
            rows = zip(drawn, prompts, strict=True)
            drawn = self._many.step(
                [(token, len(ids) + i, s, True) for s, (token, ids) in enumerate(rows)]
            )
            first.append(drawn[0])
        return Measured(time.perf_counter() - begin, first)


def one_file(model: Path) -> bytes:
    """The path as these libraries take it. Raises CannotRun for a directory."""
    if model.is_dir():
        raise CannotRun("It reads GGUF files only, and this model is a directory.")
    return bytes(model)


def compiler_of(library: Path) -> str:
    """The compiler's own note in a shared library ("GCC: (Debian 12.2.0) 12.2.0")."""
    try:
        found = re.search(rb"(GCC: \([^)\0]*\)[^\0]*|clang version [^\0]*)", library.read_bytes())
    except OSError:
        found = None
    return found[1].decode("ascii", "replace").strip() if found else "unknown"
