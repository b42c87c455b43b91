"""Prepare: a plan as one ragged Batch. The only place that turns block tables into slots.

Buffers are allocated once for the largest step and reused: a Batch is valid until the next call.
"""

from __future__ import annotations

import numpy as np

from headrace.engine.request import Sequence
from headrace.engine.scheduler import Plan
from headrace.ops.batch import Batch, GroupBatch, Int32Array


class Preparer:
    """Builds the Batch of each step. One per engine; one thread.

    max_tokens, max_seqs: the largest step. max_columns: width of the block tables.
    """

    def __init__(
        self, *, num_groups: int, block_size: int, max_tokens: int, max_seqs: int, max_columns: int
    ) -> None:
        self._block_size = block_size
        self._tokens = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._spans = np.zeros(max_seqs + 1, np.int32)
        self._context_lens = np.zeros(max_seqs, np.int32)
        self._logit_rows = np.zeros(max_seqs, np.int32)
        self._slots = [np.zeros(max_tokens, np.int32) for _ in range(num_groups)]
        self._tables = [np.zeros((max_seqs, max_columns), np.int32) for _ in range(num_groups)]
        self._first_pos = [np.zeros(max_seqs, np.int32) for _ in range(num_groups)]
        self._no_rows = np.zeros(0, np.int32)

    def build(self, plan: Plan, prompt_rows: list[int]) -> tuple[Batch, list[Sequence]]:
        """The plan's Batch, and the sequences whose next token can be drawn, in logit-row order.

        prompt_rows: rows of the step whose logits are wanted for prompt logprobs.
        """
        row = 0
        drawing: list[Sequence] = []
        self._spans[0] = 0
        for index, (sequence, count) in enumerate(
            zip(plan.sequences, plan.num_new_tokens, strict=True)
        ):
            start = sequence.num_computed_tokens
            end = start + count
            if count == 1:
                self._tokens[row] = sequence.tokens[start]
                self._positions[row] = start
            else:
                self._tokens[row : row + count] = sequence.tokens[start:end]
                self._positions[row : row + count] = np.arange(start, end, dtype=np.int32)
            self._place(index, sequence, row, count)
            row += count
            self._spans[index + 1] = row
            self._context_lens[index] = end
            if end == sequence.num_tokens:
                self._logit_rows[len(drawing)] = row - 1
                drawing.append(sequence)
        num = len(plan.sequences)
        batch = Batch(
            tokens=self._tokens[:row],
            positions=self._positions[:row].reshape(1, row),
            spans=self._spans[: num + 1],
            context_lens=self._context_lens[:num],
            logit_rows=self._logit_rows[: len(drawing)],
            prompt_rows=np.array(prompt_rows, np.int32) if prompt_rows else self._no_rows,
            groups=tuple(
                GroupBatch(slots[:row], tables[:num], first[:num])
                for slots, tables, first in zip(
                    self._slots, self._tables, self._first_pos, strict=True
                )
            ),
        )
        return batch, drawing

    def _place(self, index: int, sequence: Sequence, row: int, count: int) -> None:
        """Fills slots, table and first position of one sequence in every group."""
        blocks = sequence.blocks
        assert blocks is not None
        size = self._block_size
        start = sequence.num_computed_tokens
        unwritten = min(max(sequence.num_stored_tokens - start, 0), count)
        for group, table in enumerate(blocks.tables):
            slots = self._slots[group]
            if count == 1:
                slots[row] = int(table[start // size]) * size + start % size
            else:
                slots[row : row + count] = slots_of(table, start, count, size)
            if unwritten:
                slots[row : row + unwritten] = -1
            self._tables[group][index] = table
            self._first_pos[group][index] = blocks.first_columns[group] * size


def slots_of(table: Int32Array, start: int, count: int, block_size: int) -> Int32Array:
    """Slots of positions start … start + count − 1: block · block_size + offset. int32 [count]."""
    positions = np.arange(start, start + count, dtype=np.int32)
    slots: Int32Array = table[positions // block_size] * np.int32(block_size)
    slots += positions % block_size
    return slots
