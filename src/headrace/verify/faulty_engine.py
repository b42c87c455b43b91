"""Engines with one mistake each: overrides of the component that owns the index or table."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from typing import Any

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.core import Engine
from headrace.engine.drawing import Drawing
from headrace.engine.generation import Generation
from headrace.engine.prefix.cache import PrefixCache
from headrace.engine.prefix.finding import Match
from headrace.engine.prefix.saved import SavedPrefixes
from headrace.engine.prefix.saved_index import Columns
from headrace.engine.prefix.saved_write import PrefixSave
from headrace.engine.prefix.tree import PrefixTree
from headrace.engine.prepare import Preparer
from headrace.engine.request import Sequence
from headrace.engine.scheduler import Plan
from headrace.ops.batch import Batch, Int32Array


class _EarlySlots(Preparer):
    """A decode step's key and value go one slot too early."""

    def _place_one(self, row: int, sequence: Sequence, position: int) -> None:
        super()._place_one(row, sequence, max(position - 1, 0))


class CachePositionEngine(Engine):
    preparer_type = _EarlySlots


class _SwappedRows(Preparer):
    """The logit rows of the first two sequences that draw are exchanged."""

    def build(self, plan: Plan, prompt_rows: list[int]) -> tuple[Batch, list[Sequence]]:
        batch, drawing = super().build(plan, prompt_rows)
        if len(drawing) > 1:
            swapped = batch.logit_rows.copy()
            swapped[:2] = swapped[1::-1].copy()
            batch = replace(batch, logit_rows=swapped)
        return batch, drawing


class RowSwapEngine(Engine):
    preparer_type = _SwappedRows


class _StaleTables(Preparer):
    """A row's table is written only when its number of columns grows: right until a sequence
    that is no longer takes the row, or a copy replaces a block."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        for table in self._tables:
            table.fill(-1)

    def _show(self, index: int, blocks: SequenceBlocks) -> None:
        kept = [table[index].copy() for table in self._tables]
        super()._show(index, blocks)
        for table, old in zip(self._tables, kept, strict=True):
            if _num_columns(old) >= _num_columns(table[index]):
                table[index] = old


def _num_columns(table: Int32Array) -> int:
    held = (table >= 0).nonzero()[0]
    return int(held[-1]) + 1 if len(held) else 0


class StaleBlockTableEngine(Engine):
    preparer_type = _StaleTables


class _EagerManager(BlockManager):
    """Gives the first block of a sequence back as soon as a second one is in use; the table keeps
    it, so it is still read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trims = True

    def trim(self, blocks: SequenceBlocks, num_computed: int) -> None:
        super().trim(blocks, num_computed)
        for group, pool in enumerate(self.pools):
            if blocks.first_columns[group] == 0 and num_computed > self.block_size:
                pool.release(int(blocks.tables[group][0]))
                blocks.first_columns[group] = 1
                blocks.version += 1


class FreedBlockEngine(Engine):
    manager_type = _EagerManager


class DroppedChunkEngine(Engine):
    """The chunk after the first is counted as computed and never is."""

    def _commit(self, plan: Plan) -> None:
        super()._commit(plan)
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            first = sequence.num_computed_tokens == count
            if first and sequence.num_wanted > 1:
                skipped = min(count, sequence.num_wanted - 1)
                sequence.num_computed_tokens += skipped
                sequence.num_stored_tokens = sequence.num_computed_tokens


class _RowKeys(Drawing):
    """The sampler's noise is keyed with a sample's row in the batch."""

    def _draw_positions(self, generations: list[Generation]) -> list[int]:
        return list(range(len(generations)))


class NoiseKeyEngine(Engine):
    drawing_type = _RowKeys


class _LongMatches(PrefixTree):
    """Where a prompt leaves a cached one inside a block, the position at which it leaves counts as
    the same."""

    def match(self, tokens: list[int], salt: str = "", *, counts: bool = True) -> Match:
        match = super().match(tokens, salt, counts=counts)
        inside = match.num_stored % self.block_size
        if not inside or match.num_stored + 1 >= len(tokens):
            return match
        longer = match.num_stored + 1
        return replace(match, num_matched=longer, num_stored=longer, start=longer)


class _LongMatchCache(PrefixCache):
    tree_type = _LongMatches


class LongMatchEngine(Engine):
    cache_type = _LongMatchCache


class _NeighbourSave(PrefixSave):
    """Of a run of blocks each is saved in the place of the one before it, the first as the last."""

    def _copy(
        self, group: int, first: int, blocks: abc.Sequence[int], keys: abc.Sequence[bytes]
    ) -> Columns:
        return super()._copy(group, first, [*blocks[1:], *blocks[:1]], keys)


class _NeighbourSaves(SavedPrefixes):
    save_type = _NeighbourSave


class _SavedNeighbourCache(PrefixCache):
    saved_type = _NeighbourSaves


class SavedNeighbourEngine(Engine):
    cache_type = _SavedNeighbourCache


class KeptDraftEngine(Engine):
    """The key and value of the draft that ended a round stay in the place of the drawn token's."""

    def _commit_accepted(self) -> None:
        trials = self.speculator.trials
        missed = [s for s, trial in trials.items() if trial.num_tested > trial.num_accepted]
        super()._commit_accepted()
        for sequence in missed:
            sequence.num_stored_tokens = sequence.num_computed_tokens + 1
