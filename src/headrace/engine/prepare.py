"""Prepare: a plan as one ragged Batch. The only place that turns block tables into slots.

Buffers are allocated once for the largest step and reused: a Batch is valid until the next call.
Per sequence only what changed is done: a table row is copied when its blocks changed, and the slots
of all rows are made at once.
"""

from __future__ import annotations

import numpy as np

from headrace.engine.blocks import SequenceBlocks
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
        self._count = np.arange(max_tokens + 1, dtype=np.int32)  # 0, 1, 2, …
        # What each row of the tables shows: blocks, and their version then.
        self._shown: list[SequenceBlocks | None] = [None] * max_seqs
        self._versions = [-1] * max_seqs
        self._decode_batches: dict[int, Batch] = {}

    def build(self, plan: Plan, prompt_rows: list[int]) -> tuple[Batch, list[Sequence]]:
        """The plan's Batch, and the sequences whose next token can be drawn, in logit-row order.

        prompt_rows: rows of the step whose logits are wanted for prompt logprobs.
        """
        sequences = plan.sequences
        for index, sequence in enumerate(sequences):
            blocks = sequence.blocks
            assert blocks is not None
            if blocks is not self._shown[index] or blocks.version != self._versions[index]:
                self._show(index, blocks)
                self._shown[index], self._versions[index] = blocks, blocks.version
        if not prompt_rows and all(len(s.tokens) - s.num_computed_tokens == 1 for s in sequences):
            return self._decode(sequences), sequences
        return self._ragged(plan, prompt_rows)

    def _show(self, index: int, blocks: SequenceBlocks) -> None:
        """Copies tables and first positions into a row."""
        for group, table in enumerate(blocks.tables):
            self._tables[group][index] = table
            self._first_pos[group][index] = blocks.first_columns[group] * self._block_size

    def _decode(self, sequences: list[Sequence]) -> Batch:
        """Every sequence computes its newest token and draws: the arrays depend on their number
        and are the same objects every time."""
        num = len(sequences)
        self._tokens[:num] = [s.tokens[-1] for s in sequences]
        self._positions[:num] = [s.num_computed_tokens for s in sequences]
        np.add(self._positions[:num], 1, out=self._context_lens[:num])
        self._place(num, self._count[:num])
        for index, sequence in enumerate(sequences):
            if sequence.num_stored_tokens > sequence.num_computed_tokens:
                self._leave(index, index + 1)
        # Rows that draw and borders may be what another kind of step left there.
        self._spans[: num + 1] = self._count[: num + 1]
        self._logit_rows[:num] = self._count[:num]
        batch = self._decode_batches.get(num)
        if batch is None:
            batch = self._decode_batches[num] = self._batch(num, num, num, self._no_rows)
        return batch

    def _ragged(self, plan: Plan, prompt_rows: list[int]) -> tuple[Batch, list[Sequence]]:
        sequences, counts = plan.sequences, plan.num_new_tokens
        row = 0
        drawing: list[Sequence] = []
        self._spans[0] = 0
        unwritten: list[tuple[int, int]] = []
        for index, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            start = sequence.num_computed_tokens
            end = start + count
            self._tokens[row : row + count] = sequence.tokens[start:end]
            self._positions[row : row + count] = np.arange(start, end, dtype=np.int32)
            stored = min(sequence.num_stored_tokens - start, count)
            if stored > 0:
                unwritten.append((row, row + stored))
            row += count
            self._spans[index + 1] = row
            self._context_lens[index] = end
            if end == sequence.num_tokens:
                self._logit_rows[len(drawing)] = row - 1
                drawing.append(sequence)
        num = len(sequences)
        self._place(num, np.repeat(self._count[:num], counts))
        for begin, end in unwritten:
            self._leave(begin, end)
        wanted = np.array(prompt_rows, np.int32) if prompt_rows else self._no_rows
        return self._batch(row, num, len(drawing), wanted), drawing

    def _place(self, num: int, owners: Int32Array) -> None:
        """Slots of all rows: block · block_size + offset. owners: [T], each row's sequence, of
        `num`."""
        positions = self._positions[: len(owners)]
        columns, offsets = np.divmod(positions, np.int32(self._block_size))
        for slots, tables in zip(self._slots, self._tables, strict=True):
            np.multiply(tables[owners, columns], self._block_size, out=slots[: len(owners)])
            slots[: len(owners)] += offsets

    def _leave(self, begin: int, end: int) -> None:
        """Rows whose keys and values are stored already are computed, not written."""
        for slots in self._slots:
            slots[begin:end] = -1

    def _batch(self, rows: int, num: int, num_drawing: int, prompt_rows: Int32Array) -> Batch:
        return Batch(
            tokens=self._tokens[:rows],
            positions=self._positions[:rows].reshape(1, rows),
            spans=self._spans[: num + 1],
            context_lens=self._context_lens[:num],
            logit_rows=self._logit_rows[:num_drawing],
            prompt_rows=prompt_rows,
            groups=tuple(
                GroupBatch(slots[:rows], tables[:num], first[:num])
                for slots, tables, first in zip(
                    self._slots, self._tables, self._first_pos, strict=True
                )
            ),
        )
