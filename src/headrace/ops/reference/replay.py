"""Replay: the reference op by op, each on the inputs that another interpreter's op had."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.ops.batch import Batch
from headrace.ops.kv import KVFormat
from headrace.ops.program import Program
from headrace.ops.recording import Op
from headrace.ops.reference.ops import CallStore, ReferenceOps, StepRows
from headrace.ops.reference.weights import DEFAULT_CACHE_BYTES, WeightStore
from headrace.ops.replay import call_op


class Replay:
    """Answers the traced ops of one step, in order, in `dtype`.

    The step computes every request from position 0: keys and values are those of its own kv_write
    ops, rounded to kv_format.
    """

    def __init__(
        self,
        program: Program,
        batch: Batch,
        kv_format: KVFormat,
        dtype: torch.dtype = torch.float64,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        firsts = batch.positions[0][batch.spans[:-1]]
        assert not firsts.any(), "a replayed step starts at position 0"
        rows = StepRows(
            tokens=_ids(batch.tokens),
            positions=_ids(batch.positions[0]),
            spans=tuple(int(s) for s in batch.spans),
            logit_rows=_ids(batch.logit_rows),
            prompt_rows=_ids(batch.prompt_rows),
        )
        weights = WeightStore(program.weights, dtype, cache_bytes)
        self._dtype = dtype
        self._ops = ReferenceOps(weights, rows, CallStore(rows, kv_format))

    def __call__(
        self, op: Op, inputs: Sequence[npt.NDArray[np.float32]]
    ) -> npt.NDArray[np.floating] | None:
        """The reference's answer [rows, columns]; None for kv_write."""
        with torch.no_grad():
            tensors = [torch.from_numpy(x).to(self._dtype) for x in inputs]
            answer = call_op(op, self._ops, tensors)
        result: npt.NDArray[np.floating] | None = None if answer is None else answer.numpy()
        return result


def _ids(array: npt.NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
