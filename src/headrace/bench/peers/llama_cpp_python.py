"""llama.cpp through llama-cpp-python's low-level binding.

Flags: flash attention on and the micro batch at 512 (faster than off and than 2048 on SmolLM2), KV
in f16, weights repacked where llama.cpp can, a cache of its own per sequence and windows kept
short, as llama-batched-bench sets them.
"""

from __future__ import annotations

import ctypes
import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headrace.bench.peers.ggml import (
    NUM_BATCH,
    NUM_UBATCH,
    GgmlMeasuring,
    Stepper,
    compiler_of,
    one_file,
)
from headrace.bench.peers.peer import CannotRun, Load

_FLASH_ATTENTION_ON = 1


class LlamaCpp(GgmlMeasuring):
    """See peer.Peer."""

    def __init__(self) -> None:
        self._library = importlib.import_module("llama_cpp")

    def load(self, load: Load) -> dict[str, str]:
        library = self._library
        library.llama_backend_init()
        model = library.llama_model_load_from_file(
            one_file(load.model), library.llama_model_default_params()
        )
        if not model:
            raise CannotRun("llama.cpp cannot load this file.")
        vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        self._single = self._stepper(model, vocab_size, load.num_threads, 1, load.max_context)
        self._many = self._stepper(
            model, vocab_size, load.num_threads, load.num_sequences, load.batch_context
        )
        folder = Path(str(library.__file__)).parent / "lib"
        return {
            "version": f"llama-cpp-python {version('llama-cpp-python')}",
            "commit": _ggml_commit(folder),
            "compiler": compiler_of(folder / "libggml-cpu.so"),
            "system": library.llama_print_system_info().decode().strip(" |"),
            "settings": f"flash attention, n_batch {NUM_BATCH}, n_ubatch {NUM_UBATCH}, KV f16, "
            f"one cache per sequence",
        }

    def _stepper(
        self, model: Any, vocab_size: int, num_threads: int, num_sequences: int, context: int
    ) -> Stepper:
        params = self._library.llama_context_default_params()
        params.n_ctx = num_sequences * context
        params.n_batch = NUM_BATCH
        params.n_ubatch = NUM_UBATCH
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.swa_full = False
        made = self._library.llama_init_from_model(model, params)
        if not made:
            raise CannotRun("llama.cpp cannot make a context of this size.")
        return Stepper(self._library, made, vocab_size)

    def _clear(self, context: Any) -> None:
        self._library.llama_memory_clear(self._library.llama_get_memory(context), True)


def _ggml_commit(folder: Path) -> str:
    """What ggml says of the sources it was built from."""
    try:
        commit = ctypes.CDLL(str(folder / "libggml-base.so")).ggml_commit
        commit.restype = ctypes.c_char_p
        said: bytes = commit()
        return said.decode()
    except (OSError, AttributeError):
        return "unknown"
