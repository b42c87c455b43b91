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

from headrace.bench.peers.ggml import NUM_BATCH, NUM_UBATCH, GgmlPeer, compiler_of
from headrace.bench.peers.peer import Load

_FLASH_ATTENTION_ON = 1


class LlamaCpp(GgmlPeer):
    """See peer.Peer."""

    def __init__(self) -> None:
        super().__init__("llama.cpp", importlib.import_module("llama_cpp"))

    def load(self, load: Load) -> dict[str, str]:
        library = self._library
        self.open(load, library.llama_model_default_params())
        folder = Path(str(library.__file__)).parent / "lib"
        return {
            "version": f"llama-cpp-python {version('llama-cpp-python')}",
            "commit": _ggml_commit(folder),
            "compiler": compiler_of(folder / "libggml-cpu.so"),
            "system": library.llama_print_system_info().decode().strip(" |"),
            "settings": f"flash attention, n_batch {NUM_BATCH}, n_ubatch {NUM_UBATCH}, KV f16, "
            f"one cache per sequence",
        }

    def _tune(self, params: Any) -> None:
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.swa_full = False

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
