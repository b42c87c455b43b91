"""OpenVINO GenAI on its CPU plugin, reading the GGUF file by itself (llama and qwen families).

Settings: latency hint, one thread pool of the given size, paged attention with a scheduler whose
steps take up to 512 tokens; its prefix cache is off, since every measurement starts from nothing.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from headrace.bench.peers.peer import CannotRun, Ids, Load, Measured

_STEP_TOKENS = 512
_CACHE_SLACK = 1.1


class OpenVino:
    """See peer.Peer."""

    def __init__(self) -> None:
        self._library = importlib.import_module("openvino_genai")
        self._openvino = importlib.import_module("openvino")

    def load(self, load: Load) -> dict[str, str]:
        library = self._library
        scheduler = library.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.max_num_seqs = load.num_sequences
        scheduler.cache_size = 0  # grows with use
        try:
            self._pipeline = library.LLMPipeline(
                str(load.model),
                "CPU",
                scheduler_config=scheduler,
                INFERENCE_NUM_THREADS=load.num_threads,
                PERFORMANCE_HINT="LATENCY",
            )
        except RuntimeError as error:
            raise CannotRun(f"OpenVINO GenAI cannot read it: {reason(str(error))}") from error
        return {
            "version": f"openvino-genai {version('openvino-genai')}",
            "commit": str(self._openvino.get_version()),
            "settings": f"CPU plugin, latency hint, steps of {_STEP_TOKENS} tokens, "
            f"no prefix cache, KV and activations as the plugin chooses",
        }

    def prefill(self, ids: Ids) -> Measured:
        return self.batch([ids], 1)

    def decode(self, ids: Ids, n: int) -> Measured:
        answer = self._generate([ids], n + 1)
        gaps = answer.perf_metrics.raw_metrics.m_durations  # microseconds, from the first token on
        return Measured(float(np.sum(gaps)) * 1e-6, list(answer.tokens[0]))

    def batch(self, prompts: Sequence[Ids], n: int) -> Measured:
        begin = time.perf_counter()
        answer = self._generate(prompts, n)
        return Measured(time.perf_counter() - begin, list(answer.tokens[0]))

    def _generate(self, prompts: Sequence[Ids], n: int) -> Any:
        library, tensor = self._library, self._openvino.Tensor
        ids = np.array(prompts, np.int64)
        config = library.GenerationConfig()
        config.max_new_tokens = n
        config.ignore_eos = True
        config.do_sample = False
        inputs = library.TokenizedInputs(tensor(ids), tensor(np.ones_like(ids)))
        return self._pipeline.generate(inputs, config)


def reason(text: str) -> str:
    """The last line of OpenVINO's message that says something, without source positions."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    last = (said or lines or ["no reason given"])[-1][:300]
    if "gguf_tensor_to_f16" in last:
        last += " (a weight is in a number format that its GGUF reader does not know)"
    return last + "."
