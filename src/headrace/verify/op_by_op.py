"""The rung "op by op": every native op against the reference op on the native op's own inputs.

The text runs through a native model that keeps every value, in chunks; the rows at edge positions
are collected, and then each op is asked of torch in float64 on the same operands, as the contract
rounds them. What is left is float32 arithmetic, bound op by op (bounds.py). Errors are reported as
error ÷ bound, so 1 is the limit. The reference has the model's own ops: no planted fault is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.ops.batch import Batch, GroupBatch
from headrace.ops.contract import Rows
from headrace.ops.kv import KVFormat
from headrace.ops.packed import activation_kind
from headrace.ops.program import Program
from headrace.ops.record import record
from headrace.ops.recording import Attend, KVWrite, Linear, Op, Value
from headrace.ops.reference import functions as f
from headrace.ops.reference.ops import ReferenceOps, StepRows
from headrace.ops.reference.weights import WeightStore
from headrace.ops.replay import call_op
from headrace.verify.bounds import attend_bound, bound_of, linear_with_bound
from headrace.verify.reference import reference_positions
from headrace.verify.result import RungResult
from headrace.verify.rounding import round_activations, scaled_queries
from headrace.verify.subject import Subject

Floats = npt.NDArray[np.float32]
#: Tokens of a step: bounds the memory of a model that keeps every value.
_CHUNK = 128


@dataclass(slots=True)
class _Seen:
    """What one op read and wrote at the edge rows, a list of pieces per chunk."""

    inputs: list[list[Floats]] = field(default_factory=list)
    outputs: list[Floats] = field(default_factory=list)


def op_by_op(subject: Subject) -> RungResult:
    """Largest error ÷ bound over all ops of the program, at the edge positions."""
    positions = reference_positions(subject)
    ops = record(subject.program).segments[0]
    seen = _collect(subject, positions, ops)
    judge = _Judge(subject.program, subject.kv_format, positions, subject.workload.text)
    worst: dict[str, tuple[float, str]] = {}
    for op, found in zip(ops, seen, strict=True):
        kind, ratio = type(op).__name__.lower(), judge.ratio(op, found)
        worst[kind] = max(worst.get(kind, (0.0, "")), (ratio, str(op)))
    del worst["kvwrite"]  # what it stored is what attend read
    largest, name = max(worst.values())
    detail = "error ÷ bound: " + ", ".join(f"{kind} {r:.2g}" for kind, (r, _) in worst.items())
    if not largest <= 1.0:
        detail += f"; worst op: {name}"
    return RungResult.judge("op by op", largest, len(ops), detail, bound=1.0)


def _collect(subject: Subject, positions: list[int], ops: Sequence[Op]) -> list[_Seen]:
    model = subject.model(_CHUNK, keep=True, max_requests=_CHUNK)
    length, size = positions[-1] + 1, subject.block_size
    blocks = -(-length // size)
    model.allocate_kv([blocks] * len(model.kv_groups), size, subject.kv_format)
    seen = [_Seen() for _ in ops]
    for start in range(0, length, _CHUNK):
        end = min(start + _CHUNK, length)
        rows = [p - start for p in positions if start <= p < end]
        batch = _batch(subject.workload.text, start, end, rows, len(model.kv_groups), blocks, size)
        for op, found, trace in zip(ops, seen, model.view_step(batch), strict=True):
            whole = isinstance(op, KVWrite)
            if whole or rows:
                _add(found, op, trace.inputs, trace.output, None if whole else rows)
    return seen


def _add(
    found: _Seen, op: Op, inputs: Sequence[Floats], output: Floats | None, rows: list[int] | None
) -> None:
    """Takes the wanted rows of what has all tokens' rows; the rest has just the wanted ones."""
    named = [v for v in op.inputs if isinstance(v, Value)]
    found.inputs.append(
        [
            (x if rows is None or v.rows is not Rows.TOKENS else x[rows]).copy()
            for v, x in zip(named, inputs, strict=True)
        ]
    )
    out = op.output
    if output is not None and isinstance(out, Value):
        found.outputs.append((output[rows] if out.rows is Rows.TOKENS else output).copy())


def _batch(
    text: list[int], start: int, end: int, rows: list[int], groups: int, blocks: int, size: int
) -> Batch:
    """Tokens start … end − 1 of one request on blocks in descending order."""
    at = np.arange(start, end, dtype=np.int32)
    table = np.arange(blocks, dtype=np.int32)[::-1].copy()
    group = GroupBatch(table[at // size] * size + at % size, table[None], np.zeros(1, np.int32))
    return Batch(
        tokens=np.array(text[start:end], np.int32),
        positions=at[None],
        spans=np.array([0, end - start], np.int32),
        context_lens=np.array([end], np.int32),
        logit_rows=np.array(rows, np.int32),
        prompt_rows=np.zeros(0, np.int32),
        groups=(group,) * groups,
    )


class _Held:
    """A KVStore of everything the native model stored, rounded to the KV format, float64."""

    def __init__(self, kv_format: KVFormat) -> None:
        self.format = kv_format
        self._pages: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def put(self, group: int, layer: int, k: Floats, v: Floats) -> None:
        rounded = [f.round_to(torch.from_numpy(x), self.format).double() for x in (k, v)]
        self._pages[group, layer] = rounded[0], rounded[1]

    def write(self, group: int, layer: int, k: Tensor, v: Tensor) -> None:
        raise AssertionError("the pages hold what the native model wrote")

    def read(self, group: int, layer: int, request: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self._pages[group, layer]
        return k, v, torch.arange(k.shape[0])


class _Judge:
    """Asks the reference for each op and compares."""

    def __init__(
        self, program: Program, kv_format: KVFormat, positions: list[int], text: list[int]
    ) -> None:
        n = len(positions)
        rows = StepRows(
            tokens=torch.tensor([text[p] for p in positions]),
            positions=torch.tensor(positions),
            spans=(0, n),
            logit_rows=torch.arange(n),
            prompt_rows=torch.zeros(0, dtype=torch.int64),
        )
        self._stored = program.weights
        self._positions = rows.positions
        self._weights = WeightStore(program.weights, torch.float64, 0)
        self._pages = _Held(kv_format)
        self._ops = ReferenceOps(self._weights, rows, self._pages)

    def ratio(self, op: Op, seen: _Seen) -> float:
        """Largest error ÷ bound of one op; infinite for what is not finite or differs where the
        bound is 0."""
        pieces = zip(*seen.inputs, strict=True)
        inputs = [np.concatenate(chunks) for chunks in pieces]
        if isinstance(op, KVWrite):
            self._pages.put(op.group, op.place, inputs[0], inputs[1])
            return 0.0
        with torch.no_grad():
            answer, bound = self._answer(op, [torch.from_numpy(x).double() for x in inputs])
        error = (torch.from_numpy(np.concatenate(seen.outputs)).double() - answer).abs()
        ratios = torch.where(error == 0, torch.zeros_like(error), error / bound)
        worst = float(ratios.max())
        return worst if np.isfinite(worst) else float("inf")

    def _answer(self, op: Op, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
        if isinstance(op, Linear):
            stored = self._stored[op.weight]
            x = round_activations(inputs[0], activation_kind(stored))
            bias = None if op.bias is None else self._weights.vector(op.bias)
            return linear_with_bound(x, op.weight, stored.format.name, bias, self._weights)
        if isinstance(op, Attend):
            q = scaled_queries(inputs[0], op.scale, self._pages.format)
            answer = call_op(replace(op, scale=1.0), self._ops, [q])
            k, v, held = self._pages.read(op.group, op.place, 0)
            assert answer is not None
            return answer, attend_bound(op, q, k, v, self._positions, held, self._pages.format)
        answer = call_op(op, self._ops, inputs)
        assert answer is not None
        return answer, bound_of(op, inputs, answer, self._weights)
