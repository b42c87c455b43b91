"""Pooled rows: the rows of a step that pooled requests need, and their way into the poolers.

As with prompt logprobs (scoring.py), rows come with whatever chunk computes them, and after a
preemption none is taken twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.engine.generation import generation_of
from headrace.engine.pooling import Pooler
from headrace.engine.request import Sequence
from headrace.engine.scheduler import Plan
from headrace.ops.batch import Batch, Int32Array
from headrace.ops.executor import Executor


class PooledRows:
    """One per engine."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def rows(self, plan: Plan) -> Int32Array:
        """Rows of the step that are wanted, ascending; asked before the step."""
        return np.array([row for row, _, _ in _wanted(plan)], np.int32)

    def collect(self, plan: Plan, batch: Batch, rows: Int32Array) -> list[Sequence]:
        """Called after the step, before it is committed; the sequences whose vector is not finite.
        rows: what `rows` gave."""
        wanted = _wanted(plan)
        failed = []
        for values in self._executor.final_hidden(batch, rows):
            for row in values:
                _, sequence, pooler = next(wanted)
                if not pooler.add(row):
                    failed.append(sequence)
        assert next(wanted, None) is None, "hidden rows are missing"
        return failed


def _wanted(plan: Plan) -> Iterator[tuple[int, Sequence, Pooler]]:
    first = 0
    for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
        pooler = generation_of(sequence).request.pooler
        if pooler is not None:
            start = sequence.num_computed_tokens
            for position in pooler.wanted(start, start + count):
                yield first + position - start, sequence, pooler
        first += count
