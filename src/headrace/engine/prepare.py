"""Prepare: a plan as one ragged Batch. The only place that turns block tables into slots.

Buffers are allocated once for the largest step and reused: a Batch is valid until the next call.
A table row is copied only when its blocks changed.
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
        self._logit_rows = np.zeros(max_tokens, np.int32)
        self._slots = [np.zeros(max_tokens, np.int32) for _ in range(num_groups)]
        self._tables = [np.zeros((max_seqs, max_columns), np.int32) for _ in range(num_groups)]
        self._first_pos = [np.zeros(max_seqs, np.int32) for _ in range(num_groups)]
        self._no_rows = np.zeros(0, np.int32)
        # The same memory for writing single elements, which numpy makes dear.
        self._views = (self._tokens.data, self._positions.data, self._context_lens.data)
        self._slot_views = [slots.data for slots in self._slots]
        self._num_counted = 0  # that many leading spans and logit rows are 0, 1, 2, …
        # What each row of the tables shows: blocks, and their version then.
        self._shown: list[SequenceBlocks | None] = [None] * max_seqs
        self._versions = [-1] * max_seqs
        self._decode_batches: dict[int, Batch] = {}

    def build(self, plan: Plan, prompt_rows: list[int]) -> tuple[Batch, list[Sequence]]:
        """The plan's Batch, and the sequences whose next token can be drawn, in logit-row order:
        one row for each, and one more for each of its drafts.

        prompt_rows: rows of the step whose logits are wanted for prompt logprobs.
        """
        sequences = plan.sequences
        for index, sequence in enumerate(sequences):
            blocks = sequence.blocks
            assert blocks is not None
            if blocks is not self._shown[index] or blocks.version != self._versions[index]:
                self._show(index, blocks)
                self._shown[index], self._versions[index] = blocks, blocks.version
        if not prompt_rows:
            batch = self._decode(sequences)
            if batch is not None:
                return batch, sequences
        return self._ragged(plan, prompt_rows)

    def _show(self, index: int, blocks: SequenceBlocks) -> None:
        """Copies tables and first positions into a row."""
        for group, table in enumerate(blocks.tables):
            self._tables[group][index] = table
            self._first_pos[group][index] = blocks.first_columns[group] * self._block_size

    def _decode(self, sequences: list[Sequence]) -> Batch | None:
        """Every sequence computes its newest token and draws: then the arrays depend on their
        number and are the same objects every time. None for any other step."""
        tokens, positions, context_lens = self._views
        for index, sequence in enumerate(sequences):
            ids, start = sequence.tokens, sequence.num_computed_tokens
            if len(ids) != start + 1 or sequence.drafts or not sequence.draws:
                return None
            tokens[index] = ids[start]
            positions[index] = start
            context_lens[index] = start + 1
            self._place_one(index, sequence, start)
            if start < sequence.num_stored_tokens:
                self._leave(index, 1)
        num = len(sequences)
        if num > self._num_counted:  # one row each, and all draw
            self._spans[: num + 1] = np.arange(num + 1)
            self._logit_rows[:num] = np.arange(num)
            self._num_counted = num
        batch = self._decode_batches.get(num)
        if batch is None:
            batch = self._decode_batches[num] = self._batch(num, num, num, self._no_rows)
        return batch

    def _place_one(self, row: int, sequence: Sequence, position: int) -> None:
        """The slot of a step's row, in every group: block · block_size + offset."""
        blocks = sequence.blocks
        assert blocks is not None
        size = self._block_size
        for slots, table in zip(self._slot_views, blocks.views, strict=True):
            slots[row] = table[position // size] * size + position % size

    def _place_many(self, row: int, sequence: Sequence, start: int, count: int) -> None:
        """_place_one for `count` rows and positions."""
        blocks = sequence.blocks
        assert blocks is not None
        for slots, table in zip(self._slots, blocks.tables, strict=True):
            slots[row : row + count] = slots_of(table, start, count, self._block_size)

    def _leave(self, row: int, count: int) -> None:
        """Rows whose keys and values are stored already: they are computed, not written."""
        for slots in self._slots:
            slots[row : row + count] = -1

    def _ragged(self, plan: Plan, prompt_rows: list[int]) -> tuple[Batch, list[Sequence]]:
        row = 0
        num_logits = 0
        drawing: list[Sequence] = []
        self._num_counted = 0
        self._spans[0] = 0
        for index, (sequence, count) in enumerate(
            zip(plan.sequences, plan.num_new_tokens, strict=True)
        ):
            start = sequence.num_computed_tokens
            end = start + count
            num_drafts = len(sequence.drafts)
            ids = sequence.tokens[start:end]
            self._tokens[row : row + count] = ids + sequence.drafts if num_drafts else ids
            self._positions[row : row + count] = np.arange(start, end, dtype=np.int32)
            if count == 1:
                self._place_one(row, sequence, start)
            else:
                self._place_many(row, sequence, start, count)
            if start < sequence.num_stored_tokens:
                self._leave(row, min(sequence.num_stored_tokens - start, count))
            row += count
            self._spans[index + 1] = row
            self._context_lens[index] = end
            if end == sequence.num_tokens + num_drafts and sequence.draws:
                num_rows = 1 + num_drafts
                self._logit_rows[num_logits : num_logits + num_rows] = range(row - num_rows, row)
                num_logits += num_rows
                drawing.append(sequence)
        wanted = np.array(prompt_rows, np.int32) if prompt_rows else self._no_rows
        return self._batch(row, len(plan.sequences), num_logits, wanted), drawing

    def _batch(self, rows: int, num: int, num_logits: int, prompt_rows: Int32Array) -> Batch:
        return Batch(
            tokens=self._tokens[:rows],
            positions=self._positions[:rows].reshape(1, rows),
            spans=self._spans[: num + 1],
            context_lens=self._context_lens[:num],
            logit_rows=self._logit_rows[:num_logits],
            prompt_rows=prompt_rows,
            groups=tuple(
                GroupBatch(slots[:rows], tables[:num], first[:num])
                for slots, tables, first in zip(
                    self._slots, self._tables, self._first_pos, strict=True
                )
            ),
        )


def slots_of(table: Int32Array, start: int, count: int, block_size: int) -> Int32Array:
    """Slots of positions start … start + count − 1: block · block_size + offset. int32 [count]."""
    positions = np.arange(start, start + count, dtype=np.int32)
    slots: Int32Array = table[positions // block_size] * np.int32(block_size)
    slots += positions % block_size
    return slots
