"""Restore: saved prefixes back into a tree and its pools.

The index may say anything within bounds (Index); what decides is the seal of each block. In the
file's order, most recently used first:

    a node's parent was dropped or left out                       so is the node
    it has not the columns that it must have                      dropped
    the context or a pool has no room for it                      left out
    a block of it cannot be read, or its seal is wrong            dropped

Then the nodes go into the tree, least recently used first, so that the tree's order becomes that of
the file. Mutates pools, KV memory and tree; a failing read leaves all of them sound.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.events import first_hash
from headrace.engine.prefix.node import TOKEN_BYTES
from headrace.engine.prefix.saved_file import SavedFile
from headrace.engine.prefix.saved_index import (
    Columns,
    DamagedSaveError,
    Index,
    SavedNode,
    column_keys,
    seal,
)
from headrace.engine.prefix.tree import PrefixTree
from headrace.engine.sizing import ceil_div
from headrace.ops.executor import Executor


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What of a save can be hit now: nodes of the file, and positions new to the tree. num_dropped:
    nodes that are damaged, or below such a one. num_left_out: whole ones for which this engine has
    no room. num_bytes: of the blocks. reason: one sentence why nothing, or not all, is used; None:
    all is."""

    num_nodes: int = 0
    num_positions: int = 0
    num_dropped: int = 0
    num_left_out: int = 0
    num_bytes: int = 0
    reason: str | None = None


class _Fate(Enum):
    KEPT = 0
    DROPPED = 1
    LEFT_OUT = 2


@dataclass(slots=True)
class _Kept:
    """A node whose blocks are loaded. keys: of its own columns."""

    saved: SavedNode
    start: int
    end: int
    keys: list[bytes]
    num_children: int = 0


class Restorer:
    """One restore of one file into one tree; call `run` once."""

    def __init__(
        self,
        file: SavedFile,
        tree: PrefixTree,
        manager: BlockManager,
        executor: Executor,
        max_positions: int,
    ) -> None:
        """max_positions: of the longest sequence."""
        self._file = file
        self._tree = tree
        self._manager = manager
        self._executor = executor
        self._max_positions = max_positions
        self._kept: dict[int, _Kept] = {}
        self._blocks: dict[int, tuple[int, int]] = {}  # record → block, checksum
        self._num_bytes = 0

    def run(self) -> RestoreReport:
        """Raises OSError or DamagedSaveError when the index cannot be used."""
        index = self._file.read_index()
        try:
            fates = self._load_all(index)
            num_positions = self._insert_all()
        finally:  # what the tree took has it as a holder now
            for record, (block, _) in self._blocks.items():
                self._manager.pools[int(index.groups[record])].release(block)
        num_dropped, num_left_out = fates.count(_Fate.DROPPED), fates.count(_Fate.LEFT_OUT)
        return RestoreReport(
            len(self._kept), num_positions, num_dropped, num_left_out, self._num_bytes,
            _reason(len(self._kept), num_positions, num_dropped, num_left_out),
        )  # fmt: skip

    # ---- loading ----------------------------------------------------------------------------

    def _load_all(self, index: Index) -> list[_Fate]:
        fates: list[_Fate] = []
        for i in range(index.num_nodes):
            saved = index.node(i)
            above = self._kept.get(saved.parent)
            if saved.parent >= 0 and above is None:
                fates.append(fates[saved.parent])
            elif index.ends[i] > self._max_positions:
                fates.append(_Fate.LEFT_OUT)
            else:
                fates.append(self._load(i, saved, above, int(index.ends[i])))
        return fates

    def _load(self, place: int, saved: SavedNode, above: _Kept | None, end: int) -> _Fate:
        before = first_hash(saved.salt) if above is None else above.keys[-1]
        keys = column_keys(before, saved.tokens, self._manager.block_size)
        node = _Kept(saved, end - len(saved.tokens) // TOKEN_BYTES, end, keys)
        if not self._is_complete(node):
            return _Fate.DROPPED
        new: list[tuple[int, int]] = []  # (group, record)
        for group, pool in enumerate(self._manager.pools):
            records = set(saved.columns[group].records) - self._blocks.keys()
            if len(records) > pool.num_free:
                return _Fate.LEFT_OUT
            new += [(group, record) for record in sorted(records)]
        try:
            for group, record in new:
                self._load_block(group, record)
            if all(self._is_sealed(node, group) for group in range(self._manager.num_groups)):
                self._kept[place] = node
                if above is not None:
                    above.num_children += 1
                return _Fate.KEPT
        except (OSError, DamagedSaveError):
            pass
        for group, record in new:
            if record in self._blocks:
                self._manager.pools[group].release(self._blocks.pop(record)[0])
        return _Fate.DROPPED

    def _is_complete(self, node: _Kept) -> bool:
        """Whether a node has the columns that a node of the tree has, no more and no less."""
        size, entry_from = self._manager.block_size, node.saved.entry_from
        end = ceil_div(node.end, size)
        for columns, window in zip(node.saved.columns, self._manager.windows, strict=True):
            first = node.start // size
            if window is not None:
                first = end if entry_from is None else max(0, entry_from - window + 1) // size
            if len(columns.records) != end - first or (columns.records and columns.first != first):
                return False
        return True

    def _load_block(self, group: int, record: int) -> None:
        data, checksum = self._file.read_block(record)
        block = self._manager.pools[group].take()
        self._blocks[record] = block, checksum
        self._executor.write_block(group, block, data)
        self._num_bytes += data.size

    def _is_sealed(self, node: _Kept, group: int) -> bool:
        """Whether the loaded blocks of a node in a group are those of its tokens."""
        columns = node.saved.columns[group]
        keys = self._keys(node, columns) if columns.records else []
        stamp_key = self._file.stamp_key
        return all(
            seal(stamp_key, key, group, self._blocks[record][1]) == expected
            for key, record, expected in zip(keys, columns.records, columns.seals, strict=True)
        )

    def _keys(self, node: _Kept, columns: Columns) -> list[bytes]:
        """Keys of columns of a node's path, from columns.first to its end."""
        keys = list(node.keys)
        first, above = node.start // self._manager.block_size, node
        while first > columns.first:
            above = self._kept[above.saved.parent]
            keys[:0] = above.keys
            first -= len(above.keys)
        return keys[columns.first - first :]

    # ---- inserting --------------------------------------------------------------------------

    def _insert_all(self) -> int:
        """Positions that are new to the tree."""
        return sum(
            self._insert(node)
            for node in reversed(self._kept.values())
            # One with a single child is a part of its run, unless a window ends there.
            if node.num_children != 1 or node.saved.entry_from is not None
        )

    def _insert(self, node: _Kept) -> int:
        path = [node]
        while path[-1].saved.parent >= 0:
            path.append(self._kept[path[-1].saved.parent])
        path.reverse()
        blocks = SequenceBlocks(self._manager.num_groups, self._manager.max_columns)
        end = ceil_div(node.end, self._manager.block_size)
        for group, window in enumerate(self._manager.windows):
            parts = path if window is None else [node]
            records = [record for part in parts for record in part.saved.columns[group].records]
            first = end - len(records)
            blocks.tables[group][first:end] = [self._blocks[record][0] for record in records]
            blocks.first_columns[group], blocks.num_columns[group] = first, end
        tokens = array("i")
        for part in path:
            tokens.frombytes(part.saved.tokens)
        return self._tree.insert(
            tokens.tolist(), blocks, node.end,
            salt=node.saved.salt, entry_from=node.saved.entry_from,
        )  # fmt: skip


def _reason(num_kept: int, num_positions: int, num_dropped: int, num_left_out: int) -> str | None:
    total = num_kept + num_dropped + num_left_out
    parts = []
    if num_dropped:
        parts.append(f"{num_dropped} of {total} saved prefixes are damaged")
    if num_left_out:
        parts.append(f"the KV cache has no room for {num_left_out} of {total} saved prefixes")
    if not parts and not num_positions:
        parts.append("all saved prefixes are there already" if num_kept else "the save is empty")
    if not parts:
        return None
    sentence = " and ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."
