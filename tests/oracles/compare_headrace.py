"""How far the native path lies from the recordings, and how that compares with llama.cpp.

    python tests/oracles/compare_headrace.py smollm2-135m … [--kv f16|bf16|f32] [--alone]

Prints one JSON object per model: the figures, and unless --alone their ratio to llama.cpp's on the
same file, ids and KV format (f16 where ours is bf16) with a paired 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from compare_llama_cpp import llama_cpp_deviations
from low_bit import LowBitModel
from recorded_models import BY_NAME, RecordedModel
from recording import load as load_recording

from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import LoadedModel
from headrace.models.load import load as load_program
from headrace.ops.batch import Batch, GroupBatch
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.verify.statistics import Deviation, compare, deviation, figures

BLOCK_SIZE = 16


class HeadraceModel:
    """One model file (or loaded model) on the native path. kv: number format of the KV cache."""

    def __init__(
        self, target: RecordedModel | LowBitModel | LoadedModel, kv: str, num_ctx: int = 512
    ) -> None:
        is_loaded = isinstance(target, LoadedModel)
        program = target if is_loaded else load_program(open_checkpoint(target.path()))
        self._model = NativeModel(
            program, max_tokens=num_ctx, max_requests=1, max_context=num_ctx, num_threads=2
        )
        self._num_groups = len(self._model.kv_groups)
        num_blocks = [num_ctx // BLOCK_SIZE] * self._num_groups
        self._model.allocate_kv(num_blocks, BLOCK_SIZE, KVFormat(kv))

    def logits(self, ids: list[int], num_rows: int) -> np.ndarray:
        """Logits [num_rows, V] float32 of the last rows of `ids`, one prefill on an empty cache."""
        size = len(ids)
        every = np.arange(size, dtype=np.int32)
        table = np.arange(-(-size // BLOCK_SIZE), dtype=np.int32)[None]
        group = GroupBatch(every, table, np.zeros(1, dtype=np.int32))
        batch = Batch(
            tokens=np.array(ids, dtype=np.int32),
            positions=every[None],
            spans=np.array([0, size], dtype=np.int32),
            context_lens=np.array([size], dtype=np.int32),
            logit_rows=every[-1:],
            prompt_rows=every[size - num_rows :],
            groups=(group,) * self._num_groups,
        )
        self._model.run(batch)
        return np.concatenate([rows.copy() for rows in self._model.prompt_logits(batch)])


def headrace_deviations(target: RecordedModel, kv: str = "f16") -> list[Deviation]:
    """Deviation per prompt of the native path from the recording of `target`."""
    recording = load_recording(target.recording)
    model = HeadraceModel(target, kv)
    return [
        deviation(reference, model.logits(sequence.fed, sequence.num_rows))
        for sequence, reference in zip(recording.sequences, recording.references, strict=True)
    ]


def report(target: RecordedModel, kv: str, alone: bool) -> dict[str, Any]:
    ours = headrace_deviations(target, kv)
    result = {"model": target.name, "kv": kv} | asdict(figures(ours))
    if not alone:
        theirs = llama_cpp_deviations(target, "f16" if kv == "bf16" else kv)
        result |= {name: asdict(c) for name, c in compare(ours, theirs).items()}
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(BY_NAME))
    parser.add_argument("--kv", choices=[f.value for f in KVFormat], default="f16")
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.models:
        print(json.dumps(report(BY_NAME[name], arguments.kv, arguments.alone)), flush=True)
