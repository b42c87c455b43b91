"""ReferenceModel: token ids in, logits out, by the plainest road there is.

Every call computes every sequence from position 0; there is no cache to be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.errors import PromptError
from headrace.ops.kv import KVFormat
from headrace.ops.program import Program
from headrace.ops.reference.ops import CallStore, ReferenceOps, StepRows, Taps
from headrace.ops.reference.weights import DEFAULT_CACHE_BYTES, WeightStore


@dataclass(frozen=True, slots=True)
class Trace:
    """One run with everything in it; rows are those of all sequences, one after the other.

    logits: [chosen rows, V]. hidden: [T, E], before the final norm. taps: see `Taps`.
    """

    logits: Tensor
    hidden: Tensor
    taps: Taps


class ReferenceModel:
    """A program in `dtype` (torch.float32 or torch.float64), with keys and values rounded to
    `kv_format` (None: not rounded).

    cache_bytes: how much of the dequantised weights may stay in memory. overrides: tensors used in
    place of stored weights, by logical name (trainable parameters keep their gradient).
    """

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype = torch.float64,
        kv_format: KVFormat | None = None,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        overrides: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.program = program
        self.kv_format = kv_format
        self.weights = WeightStore(program.weights, dtype, cache_bytes, overrides)

    def logits(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Logits of each sequence, [S, V]; or [len(rows[i]), V] of the positions rows[i] only.

        Raises PromptError for empty sequences, ids outside the vocabulary, or too many positions.
        """
        wanted = [range(len(s)) for s in sequences] if rows is None else rows
        trace = self._run(sequences, wanted, taps=None)
        return list(torch.split(trace.logits, [len(w) for w in wanted]))

    def trace(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> Trace:
        """Like `logits`, with hidden values, inputs of every linear, and outputs of every layer."""
        wanted = [range(len(s)) for s in sequences] if rows is None else rows
        return self._run(sequences, wanted, taps=Taps())

    def _run(
        self,
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        taps: Taps | None,
    ) -> Trace:
        rows = self._rows(sequences, wanted)
        ops = ReferenceOps(self.weights, rows, CallStore(rows, self.kv_format), taps)
        self.program.step(ops)
        return Trace(ops.outputs["logits"], ops.outputs["hidden"], taps or Taps())

    def _rows(
        self, sequences: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]
    ) -> StepRows:
        spans = [0]
        for ids in sequences:
            if not ids:
                raise PromptError("A sequence is empty; the reference needs at least one token.")
            if len(ids) > self.program.max_context:
                limit = self.program.max_context
                raise PromptError(f"A sequence has {len(ids)} tokens, but the context is {limit}.")
            spans.append(spans[-1] + len(ids))
        tokens = torch.tensor([t for ids in sequences for t in ids], dtype=torch.int64)
        vocab = self.program.vocab_size
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
            raise PromptError(f"A token id is outside the vocabulary of {vocab}.")
        chosen = [start + p for start, ps in zip(spans, wanted, strict=False) for p in ps]
        return StepRows(
            tokens=tokens,
            positions=torch.cat([torch.arange(len(ids)) for ids in sequences]),
            spans=tuple(spans),
            logit_rows=torch.tensor(chosen, dtype=torch.int64),
            prompt_rows=torch.zeros(0, dtype=torch.int64),
        )
