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

from headrace.bench.peers.ggml import NUM_BATCH, NUM_UBATCH, GgmlPeer, compiler_of
from headrace.bench.peers.peer import Load


class IkLlamaCpp(GgmlPeer):
    """See peer.Peer."""

    def __init__(self) -> None:
        # A build of one's own does not find libggml beside libllama; once loaded, it is found.
        spec = find_spec("ik_llama_cpp")
        if spec is not None and spec.origin is not None:
            with contextlib.suppress(OSError):
                ctypes.CDLL(
                    str(Path(spec.origin).parent / "lib" / "libggml.so"), ctypes.RTLD_GLOBAL
                )
        super().__init__("ik_llama.cpp", importlib.import_module("ik_llama_cpp._ctypes_api"))

    def load(self, load: Load) -> dict[str, str]:
        library = self._library
        params = library.llama_model_default_params()
        params.repack_tensors = True
        params.use_mmap = False
        self.open(load, params)
        folder = Path(str(library.__file__)).parent / "lib"
        return {
            "version": f"ik-llama-cpp-python {version('ik-llama-cpp-python')}",
            "compiler": compiler_of(folder / "libggml.so"),
            "system": _system_info(library),
            "settings": f"repacked at load, flash attention, fused gate and up, "
            f"n_batch {NUM_BATCH}, n_ubatch {NUM_UBATCH}, KV f16, one cache for all sequences",
        }

    def _tune(self, params: Any) -> None:
        params.n_ctx = -(-params.n_ctx // 256) * 256  # or flash attention aborts
        params.flash_attn = True
        params.fused_up_gate = True

    def _clear(self, context: Any) -> None:
        self._library.llama_kv_cache_clear(context)


def _system_info(library: Any) -> str:
    """The instruction sets it was built for; its binding leaves the function out."""
    ask = library._lib.llama_print_system_info
    ask.restype = ctypes.c_char_p
    said: bytes = ask()
    return said.decode().strip(" |")
