"""PrefixSave: the prefix tree on its way into a file, a piece between two steps at a time.

    collect ─▶ write ─▶ collect ─▶ write ─▶ … ─▶ finish
    engine's thread     any thread

`collect` copies blocks that the tree holds at that moment, so a block that was evicted meanwhile,
and perhaps given to another request, is never read: what of the tree has gone is left out. What was
copied before stays right, since the bytes of a block follow from its tokens; so the file names
blocks by their tokens (saved_index.column_keys), never by ids, which change hands.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.engine.prefix.inspection import by_last_use
from headrace.engine.prefix.node import Entry, Node
from headrace.engine.prefix.saved_file import SaveWriter
from headrace.engine.prefix.saved_index import (
    MAX_INDEX_BYTES,
    MAX_SALT_BYTES,
    Columns,
    IndexBuilder,
    SavedNode,
    column_keys,
    seal,
)
from headrace.engine.prefix.store import NodeStore
from headrace.ops.executor import Executor

#: What one `collect` copies, and the longest run of a node in the file: some milliseconds.
PIECE_BYTES = 16 << 20
#: Index bytes of one more node: its row, a salt, and a safe rest.
_NODE_BYTES = MAX_SALT_BYTES + 4096
#: Characters of a salt; longer ones are not saved.
_MAX_SALT = MAX_SALT_BYTES // 4


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What was saved. num_left_out: nodes that had gone when their turn came, or for which the
    limit left no room. reason: why nothing was saved, one sentence; None: all is well."""

    num_nodes: int = 0
    num_positions: int = 0
    num_bytes: int = 0
    num_left_out: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Columns [first, end) of a node's run, keys naming all of its columns. parent: the place in
    the file of what comes before."""

    node: Node
    keys: list[bytes]
    first: int
    end: int
    parent: int

    @property
    def entry(self) -> Entry | None:
        """The last piece has the node's entry."""
        return self.node.entry if self.end == len(self.keys) else None


class PrefixSave:
    """A save in progress: `finish` or `abandon` ends it. limit_bytes: most bytes of the file.
    began_s: on the monotonic clock."""

    def __init__(
        self,
        store: NodeStore,
        executor: Executor,
        writer: SaveWriter,
        block_bytes: Sequence[int],
        limit_bytes: int,
    ) -> None:
        self._store = store
        self._executor = executor
        self._writer = writer
        self._block_bytes = block_bytes
        self._limit = limit_bytes
        self.began_s = time.monotonic()
        self._nodes = list(by_last_use(store))
        self._next = 0
        self._builder = IndexBuilder(len(block_bytes))
        self._places: dict[bytes, int] = {}  # key at a node's end → its index in the file
        self._blocks: dict[tuple[int, bytes], tuple[int, int]] = {}  # (group, key) → record, seal
        self._num_left_out = 0
        column_bytes = sum(block_bytes[group] for group in store.full_groups)
        self._piece_columns = max(1, PIECE_BYTES // column_bytes) if column_bytes else 1 << 20

    def collect(self, max_bytes: int = PIECE_BYTES) -> bool:
        """Copies the next nodes, most recently used first, until max_bytes or more wait to be
        written; whether any are left. Between steps, on the thread that runs them."""
        while self._next < len(self._nodes):
            if self._writer.num_pending_bytes >= max_bytes:
                return True
            salt, node = self._nodes[self._next]
            is_held = len(salt) <= _MAX_SALT and self._is_held(salt, node)
            piece = self._next_piece(node) if is_held else None
            if piece is not None and self._has_room(piece):
                self._add_piece(salt, piece)
                continue
            self._num_left_out += piece is not None or not is_held
            self._next += 1
        return False

    def write(self) -> None:
        """Writes what was collected. Raises OSError; then `abandon`."""
        self._writer.write()

    def finish(self) -> SaveReport:
        """Completes the file and puts it in the old one's place. Raises OSError; the old file is
        untouched then."""
        builder = self._builder
        num_bytes = self._writer.finish(builder.to_bytes())
        return SaveReport(builder.num_nodes, builder.num_tokens, num_bytes, self._num_left_out)

    def abandon(self) -> None:
        """Leaves the old file as it is."""
        self._writer.abandon()

    # ---- nodes ------------------------------------------------------------------------------

    def _is_held(self, salt: str, node: Node) -> bool:
        """Whether a node is still in the tree."""
        while node.parent is not None:
            node = node.parent
        return self._store.roots.get(salt) is node

    def _next_piece(self, node: Node) -> _Piece | None:
        """What of a node's path is to be added next; None when all of it is there."""
        hash_of, places = self._store.hash_of, self._places
        path = [node]
        while (above := path[-1].parent) is not None and above.parent is not None:
            if hash_of(above) in places:
                break
            path.append(above)
        assert above is not None
        parent = places.get(hash_of(above), -1)
        for part in reversed(path):
            assert part.parent is not None
            keys = column_keys(hash_of(part.parent), part.tokens, self._store.block_size)
            for first in range(0, len(keys), self._piece_columns):
                end = min(first + self._piece_columns, len(keys))
                place = places.get(keys[end - 1])
                if place is None:
                    return _Piece(part, keys, first, end, parent)
                parent = place
        return None

    def _has_room(self, piece: _Piece) -> bool:
        """Whether the limits leave room, counted as if all its blocks were new."""
        node, count = piece.node, piece.end - piece.first
        held = [0] * len(self._block_bytes)
        for group in self._store.full_groups:
            held[group] = count
        if piece.entry is not None:
            for group, blocks in zip(self._store.window_groups, piece.entry.blocks, strict=True):
                held[group] = len(blocks)
        index_bytes = self._builder.num_bytes + len(node.tokens) + 16 * sum(held) + _NODE_BYTES
        data_bytes = sum(n * size for n, size in zip(held, self._block_bytes, strict=True))
        total = self._writer.num_bytes + data_bytes + index_bytes
        return index_bytes <= MAX_INDEX_BYTES and total <= self._limit

    def _add_piece(self, salt: str, piece: _Piece) -> None:
        store, node = self._store, piece.node
        page, stride = store.page_bytes, len(store.full_groups)
        start = node.start // store.block_size
        columns = [Columns(start + piece.first)] * len(self._block_bytes)
        for k, group in enumerate(store.full_groups):
            blocks = node.blocks[piece.first * stride + k : piece.end * stride : stride]
            keys = piece.keys[piece.first : piece.end]
            columns[group] = self._copy(group, start + piece.first, blocks, keys)
        entry = piece.entry
        if entry is not None:
            reach = min(start, *entry.first_columns)
            keys = [*self._keys_before(node, reach), *piece.keys]
            for k, group in enumerate(store.window_groups):
                first = entry.first_columns[k]
                columns[group] = self._copy(group, first, entry.blocks[k], keys[first - reach :])
        saved = SavedNode(
            piece.parent,
            salt,
            node.tokens[piece.first * page : piece.end * page],
            None if entry is None else entry.oldest,
            tuple(columns),
        )
        self._places[piece.keys[piece.end - 1]] = self._builder.add_node(saved)

    def _keys_before(self, node: Node, first: int) -> list[bytes]:
        """Keys of the columns of a node's path from `first` to where its run starts."""
        keys: list[bytes] = []
        size = self._store.block_size
        while node.start > first * size:
            assert node.parent is not None
            node = node.parent
            assert node.parent is not None
            keys[:0] = column_keys(self._store.hash_of(node.parent), node.tokens, size)
        return keys[first - node.start // size :] if keys else []

    def _copy(
        self, group: int, first: int, blocks: Sequence[int], keys: Sequence[bytes]
    ) -> Columns:
        """Copies the blocks of neighbouring columns, each once in the file."""
        records, seals = [], []
        for block, key in zip(blocks, keys, strict=True):
            stored = self._blocks.get((group, key))
            if stored is None:
                checksum = self._writer.add(self._executor.read_block(group, block))
                stored = (
                    self._builder.add_block(group),
                    seal(self._writer.stamp_key, key, group, checksum),
                )
                self._blocks[group, key] = stored
            records.append(stored[0])
            seals.append(stored[1])
        return Columns(first, tuple(records), tuple(seals))
