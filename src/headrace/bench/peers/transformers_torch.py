"""transformers on torch: the weights dequantised to bf16, since it has no CPU kernels for GGUF's
formats; SDPA attention and its dynamic cache (a static one pays off only with a compiled model,
whose compilation takes minutes per shape).
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headrace.bench.peers.peer import CannotRun, Ids, Load, Measured


class Transformers:
    """See peer.Peer."""

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        self._transformers = importlib.import_module("transformers")

    def load(self, load: Load) -> dict[str, str]:
        torch, transformers = self._torch, self._transformers
        torch.set_num_threads(load.num_threads)
        transformers.logging.set_verbosity_error()
        where, options = _source(load.model)
        try:
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                where, dtype=torch.bfloat16, attn_implementation="sdpa", **options
            ).eval()
        except (ValueError, KeyError, NotImplementedError, OSError) as error:
            text = " ".join(str(error).split())
            raise CannotRun(f"transformers cannot load it: {text[:300]}") from error
        return {
            "version": f"transformers {version('transformers')}, torch {torch.__version__}",
            "system": f"{torch.backends.cpu.get_cpu_capability()}, oneDNN "
            f"{'on' if torch.backends.mkldnn.is_available() else 'off'}",
            "settings": "weights dequantised to bf16, SDPA attention, dynamic cache in bf16",
        }

    def prefill(self, ids: Ids) -> Measured:
        return self._run([ids], 1)

    def decode(self, ids: Ids, n: int) -> Measured:
        with self._torch.inference_mode():
            cache = self._cache()
            drawn = self._step(self._torch.tensor([list(ids)]), cache)
            tokens = [int(drawn[0])]
            begin = time.perf_counter()
            for _ in range(n):
                drawn = self._step(drawn[:, None], cache)
                tokens.append(int(drawn[0]))
        return Measured(time.perf_counter() - begin, tokens)

    def batch(self, prompts: Sequence[Ids], n: int) -> Measured:
        return self._run(prompts, n)

    def _run(self, prompts: Sequence[Ids], n: int) -> Measured:
        with self._torch.inference_mode():
            begin = time.perf_counter()
            cache = self._cache()
            drawn = self._step(self._torch.tensor([list(ids) for ids in prompts]), cache)
            tokens = [int(drawn[0])]
            for _ in range(n - 1):
                drawn = self._step(drawn[:, None], cache)
                tokens.append(int(drawn[0]))
        return Measured(time.perf_counter() - begin, tokens)

    def _cache(self) -> Any:
        return self._transformers.DynamicCache(config=self._model.config)

    def _step(self, ids: Any, cache: Any) -> Any:
        """ids [B, T] → argmax [B] of the last position."""
        out = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1)


def _source(model: Path) -> tuple[str, dict[str, str]]:
    if model.is_dir():
        return str(model), {}
    with contextlib.suppress(OSError):
        if model.suffix == ".gguf" or model.read_bytes()[:4] == b"GGUF":
            return str(model.parent), {"gguf_file": model.name}
    raise CannotRun("transformers reads a Hugging Face directory or a GGUF file.")
