"""llama.cpp (llama-cpp-python) fed given ids: tokenizer and teacher-forced logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type

KV_TYPES = {"f16": Type.F16, "bf16": Type.BF16, "f32": Type.F32}


class LlamaCpp:
    """One model file. kv: number format of the KV cache."""

    def __init__(
        self, path: Path, *, kv: str = "f16", num_ctx: int = 512, num_threads: int = 1
    ) -> None:
        import llama_cpp  # built by `make test-models` only

        self._library = llama_cpp
        self._model = llama_cpp.Llama(
            str(path),
            n_ctx=num_ctx,
            n_batch=num_ctx,
            n_ubatch=num_ctx,
            n_threads=num_threads,
            n_threads_batch=num_threads,
            type_k=int(KV_TYPES[kv]),
            type_v=int(KV_TYPES[kv]),
            flash_attn=kv == "bf16",
            verbose=False,
        )
        self._num_ctx = num_ctx
        self.vocab_size = self._model.n_vocab()

    def logits(self, ids: Sequence[int], num_rows: int) -> np.ndarray:
        """Logits [num_rows, V] float32 of the last rows of `ids`, one prefill on an empty cache."""
        llama_cpp, context = self._library, self._model.ctx
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i] = token
                batch.pos[i] = i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = i >= len(ids) - num_rows
            code = llama_cpp.llama_decode(context, batch)
            if code != 0:
                raise RuntimeError(f"llama_decode gave {code}")
            rows = llama_cpp.llama_get_logits(context)
            return np.ctypeslib.as_array(rows, (num_rows, self.vocab_size)).copy()
        finally:
            llama_cpp.llama_batch_free(batch)


def tokenize(path: Path, texts: Sequence[str], add_special: Sequence[bool]) -> list[list[int]]:
    """Ids of texts by llama.cpp's tokenizer; special tokens in the text are recognised.

    add_special: whether the model's own BOS rule applies (not to rendered chat templates).
    """
    import llama_cpp

    vocabulary = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [
        vocabulary.tokenize(text.encode(), add_bos=special, special=True)
        for text, special in zip(texts, add_special, strict=True)
    ]
