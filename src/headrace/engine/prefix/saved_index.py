"""The index of a saved prefix tree: nodes, their tokens, and which stored block each column has.

    u64 × 6: salts, their bytes, nodes, tokens, references, blocks          all little-endian
    u32 salt lengths · UTF-8 · node table · u32 tokens · u32 records · u64 seals · u8 groups

Parents come before their children. A node's run starts at a block border, so a child starts where
its parent ends. A reference names a stored block by its number (a record) and seals it: the seal
follows from the block's checksum, its group, the stamp, and every token from the start of the
prompt to the end of the column. So a block is never taken for other tokens than those it was
computed from, whichever of the two was damaged.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.prefix.events import chain
from headrace.engine.prefix.node import TOKEN_BYTES

#: More is neither written nor read: an index is held in memory.
MAX_INDEX_BYTES = 64 << 20
MAX_SALT_BYTES = 1 << 10
_COUNTS = struct.Struct("<6Q")


class DamagedSaveError(Exception):
    """A file of saved prefixes is not what it should be; says why."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The stored blocks of neighbouring columns first, first + 1, … of a node's path in a group."""

    first: int
    records: tuple[int, ...] = ()
    seals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedNode:
    """parent: index of its parent, −1 = none. tokens: its run, 4 little-endian bytes a token.
    entry_from: oldest position that the window blocks can be entered from; None = there are none.
    columns: per KV group."""

    parent: int
    salt: str
    tokens: bytes
    entry_from: int | None
    columns: tuple[Columns, ...]


def column_keys(before: bytes, tokens: bytes, block_size: int) -> list[bytes]:
    """Names of the columns of a run, a last partly filled one included: see events.chain. before:
    name of the column before the run, or events.first_hash of the salt."""
    page_bytes = TOKEN_BYTES * block_size
    keys = chain(before, tokens, page_bytes)
    rest = len(tokens) % page_bytes
    if rest:
        keys += chain(keys[-1] if keys else before, tokens[-rest:], rest)
    return keys


def seal(stamp_key: str, key: bytes, group: int, checksum: int) -> int:
    """Binds a block's bytes to its group, to the tokens that they were computed from, and to what
    computed them (Stamp.key)."""
    data = key + struct.pack("<IQ", group, checksum)
    digest = hashlib.blake2b(data, digest_size=8, key=stamp_key.encode()).digest()
    return int.from_bytes(digest, "little")


class IndexBuilder:
    """Collects an index."""

    def __init__(self, num_groups: int) -> None:
        self._row = struct.Struct("<iIIq" + "II" * num_groups)
        self._salts: dict[str, int] = {}
        self._nodes, self._tokens = bytearray(), bytearray()
        self._records, self._seals = array("I"), array("Q")
        self._groups = bytearray()
        self.num_nodes = 0

    @property
    def num_bytes(self) -> int:
        """Size of the index so far, salts at their largest."""
        return (
            _COUNTS.size
            + len(self._salts) * (4 + MAX_SALT_BYTES)
            + len(self._nodes)
            + len(self._tokens)
            + 12 * len(self._records)
            + len(self._groups)
        )

    @property
    def num_tokens(self) -> int:
        return len(self._tokens) // TOKEN_BYTES

    def add_block(self, group: int) -> int:
        """The record of the next block that the file holds."""
        self._groups.append(group)
        return len(self._groups) - 1

    def add_node(self, node: SavedNode) -> int:
        """Its index. Its parent and its blocks are there; its salt has at most MAX_SALT_BYTES."""
        salt = self._salts.setdefault(node.salt, len(self._salts))
        spans = [n for columns in node.columns for n in (columns.first, len(columns.records))]
        entry_from = -1 if node.entry_from is None else node.entry_from
        length = len(node.tokens) // TOKEN_BYTES
        self._nodes += self._row.pack(node.parent, salt, length, entry_from, *spans)
        self._tokens += node.tokens
        for columns in node.columns:
            self._records.extend(columns.records)
            self._seals.extend(columns.seals)
        self.num_nodes += 1
        return self.num_nodes - 1

    def to_bytes(self) -> bytes:
        salts = [salt.encode(errors="surrogatepass") for salt in self._salts]
        counts = (
            len(salts), sum(map(len, salts)), self.num_nodes, self.num_tokens, len(self._records),
            len(self._groups),
        )  # fmt: skip
        return b"".join((
            _COUNTS.pack(*counts),
            np.array([len(salt) for salt in salts], "<u4").tobytes(),
            *salts,
            self._nodes,
            self._tokens,
            np.array(self._records, "<u4").tobytes(),
            np.array(self._seals, "<u8").tobytes(),
            self._groups,
        ))  # fmt: skip


class Index:
    """A parsed index. Everything in it is within bounds, and nothing more is known of it: seals
    decide about blocks. groups: u8 [blocks], the group of each stored block."""

    def __init__(self, data: bytes, num_groups: int, block_size: int, num_ids: int) -> None:
        """num_groups, block_size, num_ids: of the stamp. Raises DamagedSaveError."""
        row: np.dtype[Any] = np.dtype([
            ("parent", "<i4"), ("salt", "<u4"), ("tokens", "<u4"), ("entry_from", "<i8"),
            ("spans", "<u4", (num_groups, 2)),
        ])  # fmt: skip
        if len(data) < _COUNTS.size:
            raise DamagedSaveError("its index is cut short")
        num_salts, salt_bytes, nodes, tokens, refs, blocks = _COUNTS.unpack_from(data)
        parts: tuple[tuple[np.dtype[Any], int], ...] = (
            (np.dtype("<u4"), num_salts), (np.dtype("u1"), salt_bytes), (row, nodes),
            (np.dtype("<u4"), tokens), (np.dtype("<u4"), refs), (np.dtype("<u8"), refs),
            (np.dtype("u1"), blocks),
        )  # fmt: skip
        if _COUNTS.size + sum(kind.itemsize * count for kind, count in parts) != len(data):
            raise DamagedSaveError("the sizes in its index do not add up")
        arrays: list[Any] = []
        at = _COUNTS.size
        for kind, count in parts:
            arrays.append(np.frombuffer(data, kind, count, at))
            at += kind.itemsize * count
        lengths, text, self._nodes, *rest = arrays
        self._tokens: npt.NDArray[np.uint32] = rest[0]
        self._records: npt.NDArray[np.uint32] = rest[1]
        self._seals: npt.NDArray[np.uint64] = rest[2]
        self.groups: npt.NDArray[np.uint8] = rest[3]
        self._num_groups, self._block_size = num_groups, block_size
        self.num_nodes = nodes
        self._salts = _salts(lengths, text.tobytes())
        self._check_nodes(num_ids)
        self._check_references()

    def _check_nodes(self, num_ids: int) -> None:
        nodes, size = self._nodes, self._block_size
        parents, lengths = nodes["parent"].astype(np.int64), nodes["tokens"].astype(np.int64)
        if not ((parents >= -1) & (parents < np.arange(len(nodes)))).all():
            raise DamagedSaveError("a node of its index comes before its parent")
        if (nodes["salt"] >= len(self._salts)).any():
            raise DamagedSaveError("a node of its index has no salt")
        if (lengths < 1).any() or lengths.sum() != len(self._tokens):
            raise DamagedSaveError("the runs of its nodes do not add up")
        if (self._tokens >= num_ids).any():
            raise DamagedSaveError("it holds ids that are no tokens")
        salts: list[int] = nodes["salt"].tolist()
        starts, ends = [0] * len(nodes), [0] * len(nodes)
        for i, (parent, length) in enumerate(zip(parents.tolist(), lengths.tolist(), strict=True)):
            if parent >= 0:
                starts[i] = ends[parent]
                if starts[i] % size or salts[parent] != salts[i]:
                    raise DamagedSaveError("a node of its index does not fit its parent")
            ends[i] = starts[i] + length
        #: int64 [nodes]: positions that each node's path ends before.
        self.ends = np.array(ends, np.int64)
        self._first_token = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        entries, spans = nodes["entry_from"], nodes["spans"].astype(np.int64)
        if ((entries < -1) | (entries > self.ends)).any():
            raise DamagedSaveError("an entry of its index lies outside its node")
        if (spans.sum(2) > -(-self.ends // size)[:, None]).any():
            raise DamagedSaveError("a node of its index holds columns past its end")

    def _check_references(self) -> None:
        counts = self._nodes["spans"][:, :, 1].astype(np.int64).reshape(-1)
        if counts.sum() != len(self._records):
            raise DamagedSaveError("the columns of its nodes do not add up")
        if (self._records >= len(self.groups)).any() or (self.groups >= self._num_groups).any():
            raise DamagedSaveError("its index names a block that it does not hold")
        expected = np.repeat(np.arange(len(counts)) % self._num_groups, counts)
        if (self.groups[self._records] != expected).any():
            raise DamagedSaveError("its index names a block of another group")
        self._first_reference = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def node(self, index: int) -> SavedNode:
        """One node, read out."""
        row = self._nodes[index]
        columns = []
        for group in range(self._num_groups):
            place = index * self._num_groups + group
            part = slice(self._first_reference[place], self._first_reference[place + 1])
            records, seals = self._records[part].tolist(), self._seals[part].tolist()
            columns.append(Columns(int(row["spans"][group, 0]), tuple(records), tuple(seals)))
        entry_from = int(row["entry_from"])
        return SavedNode(
            int(row["parent"]),
            self._salts[int(row["salt"])],
            self._tokens[self._first_token[index] : self._first_token[index + 1]].tobytes(),
            None if entry_from < 0 else entry_from,
            tuple(columns),
        )


def _salts(lengths: npt.NDArray[np.uint32], text: bytes) -> list[str]:
    if (lengths > MAX_SALT_BYTES).any() or int(lengths.sum(dtype=np.int64)) != len(text):
        raise DamagedSaveError("the salts of its index do not add up")
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    try:
        return [text[a:b].decode(errors="surrogatepass") for a, b in pairwise([0, *ends])]
    except UnicodeDecodeError:
        raise DamagedSaveError("a salt of its index is not text") from None
