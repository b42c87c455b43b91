"""ik_llama.cpp, the fork of llama.cpp tuned for CPUs, through ik-llama-cpp-python's raw binding.

Flags: weights repacked at load (-rtr, which excludes mmap), flash attention, fused gate and up
projections, KV in f16; one cache for all sequences, as the fork has no other.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from importlib.metadata import version
from importlib.util import find_spec
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


class IkLlamaCpp(GgmlMeasuring):
    """See peer.Peer."""

    def __init__(self) -> None:
        # A build of one's own does not find libggml beside libllama; once loaded, it is found.
        spec = find_spec("ik_llama_cpp")
        if spec is not None and spec.origin is not None:
            with contextlib.suppress(OSError):
                ctypes.CDLL(
                    str(Path(spec.origin).parent / "lib" / "libggml.so"), ctypes.RTLD_GLOBAL
                )
        self._library = importlib.import_module("ik_llama_cpp._ctypes_api")

    def load(self, load: Load) -> dict[str, str]:
        library = self._library
        library.llama_backend_init()
        params = library.llama_model_default_params()
        params.repack_tensors = True
        params.use_mmap = False
        model = library.llama_model_load_from_file(one_file(load.model), params)
        if not model:
            raise CannotRun("ik_llama.cpp cannot load this file.")
        vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        self._single = self._stepper(model, vocab_size, load.num_threads, 1, load.max_context)
        self._many = self._stepper(
            model, vocab_size, load.num_threads, load.num_sequences, load.batch_context
        )
        folder = Path(str(library.__file__)).parent / "lib"
        return {
            "version": f"ik-llama-cpp-python {version('ik-llama-cpp-python')}",
            "compiler": compiler_of(folder / "libggml.so"),
            "system": _system_info(library),
            "settings": f"repacked at load, flash attention, fused gate and up, "
            f"n_batch {NUM_BATCH}, n_ubatch {NUM_UBATCH}, KV f16, one cache for all sequences",
        }

    def _stepper(
        self, model: Any, vocab_size: int, num_threads: int, num_sequences: int, context: int
    ) -> Stepper:
        params = self._library.llama_context_default_params()
        params.n_ctx = -(-num_sequences * context // 256) * 256  # or flash attention aborts
        params.n_batch = NUM_BATCH
        params.n_ubatch = NUM_UBATCH
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn = True
        params.fused_up_gate = True
        made = self._library.llama_init_from_model(model, params)
        if not made:
            raise CannotRun("ik_llama.cpp cannot make a context of this size.")
        return Stepper(self._library, made, vocab_size)

    def _clear(self, context: Any) -> None:
        self._library.llama_kv_cache_clear(context)


def _system_info(library: Any) -> str:
    """The instruction sets it was built for; its binding leaves the function out."""
    ask = library._lib.llama_print_system_info
    ask.restype = ctypes.c_char_p
    said: bytes = ask()
    return said.decode().strip(" |")
