"""The command that starts `headrace serve` as it was planned."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from headrace.engine.config import DEFAULT_MAX_MODEL_LEN
from headrace.limits.plan.question import STEP_TOKENS, Question
from headrace.limits.plan.row import Row
from headrace.ops.kv import KVFormat
from headrace.ops.quantize import QUANTISERS

DEFAULT_MAX_NUM_SEQS = 64


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """command: the words, to be copied. notes: what has to be said of it."""

    command: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        return shlex.join(self.command)


def serve_command(question: Question, row: Row) -> ServeCommand:
    """For the row's concurrency, at most what fits."""
    fitting = row.max_concurrency if row.max_concurrency is not None else row.concurrency
    seqs = max(min(row.concurrency, fitting), 1)
    notes: list[str] = []
    model = question.model.servable
    if model is None:
        model = "model.gguf"
        notes.append("model.gguf stands for the model's file: only its description is here.")
    words = ["headrace", "serve", model]
    default_length = min(question.model.program.max_context, DEFAULT_MAX_MODEL_LEN)
    if question.context != default_length:
        words += ["--max-model-len", str(question.context)]
    if seqs != DEFAULT_MAX_NUM_SEQS:
        words += ["--max-num-seqs", str(seqs)]
    batched = question.budget("cpu", seqs)
    if batched != max(STEP_TOKENS["cpu"], seqs):  # what the engine would take
        words += ["--max-num-batched-tokens", str(batched)]
    if question.kv_format in (KVFormat.F16, KVFormat.F32):
        words += ["--kv-cache-dtype", question.kv_format.value]
    elif question.kv_format is not KVFormat.BF16:
        notes.append(f"Headrace keeps no {question.kv_format.value} KV cache; it takes bf16.")
    wanted = question.quantized
    if wanted is not None:
        if wanted.upper() in {f.name for f in QUANTISERS}:
            words += ["--quantize", wanted.lower()]
        else:
            notes.append(f"Headrace does not quantise to {wanted} at load; give it such a file.")
    words += ["--kv-cache-memory", f"{-(-_kv_bytes(row, seqs) // 2**20)}MiB"]
    if row.hardware.kind != "cpu":
        notes.append("Headrace runs on CPUs; this is how it would be started on one.")
    if seqs < row.concurrency:
        notes.append(f"{row.concurrency} requests do not fit; {seqs} do, the others wait.")
    return ServeCommand(tuple(words), tuple(notes))


def _kv_bytes(row: Row, seqs: int) -> int:
    return -(-row.memory.kv * seqs // row.concurrency)
