"""TokenTable: the bytes and the kind of every token, in one file that is mapped, never copied.

Detokenising needs only this table, so it works before (and without) loading the encoder. Layout of
the file, little-endian:

    magic "HRTOK1\\0\\0" | u32 header_bytes | header: JSON, padded with blanks to a multiple of 4
    u32 offsets [n + 1] | u8 kinds [n] | blob, token i at offsets[i] : offsets[i + 1]
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"HRTOK1\0\0"

#: Kinds of a token for decoding.
TEXT, SPECIAL = 0, 1


class TokenTable:
    """Read-only table of token bytes; immutable and safe to share between threads."""

    __slots__ = ("_blob", "_kinds", "_max_token_bytes", "_offsets", "header")

    def __init__(
        self, header: Mapping[str, Any], offsets: np.ndarray, kinds: np.ndarray, blob: memoryview
    ) -> None:
        self.header = header
        # As memoryviews: an element is a plain int, at a third of numpy's price.
        self._offsets = offsets.data
        self._kinds = kinds.data
        self._blob = blob
        self._max_token_bytes: int | None = None

    def __len__(self) -> int:
        return len(self._kinds)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for. IndexError outside 0 … len - 1."""
        if not 0 <= token_id < len(self._kinds):
            raise IndexError(f"token id {token_id} is outside 0 … {len(self._kinds) - 1}")
        start, stop = self._offsets[token_id], self._offsets[token_id + 1]
        return bytes(self._blob[start:stop])

    def text_bytes(self, token_id: int) -> bytes:
        """token_bytes, but nothing for control tokens. IndexError outside 0 … len - 1."""
        if not 0 <= token_id < len(self._kinds):
            raise IndexError(f"token id {token_id} is outside 0 … {len(self._kinds) - 1}")
        if self._kinds[token_id] == SPECIAL:
            return b""
        return bytes(self._blob[self._offsets[token_id] : self._offsets[token_id + 1]])

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which decode() leaves out by default."""
        if not 0 <= token_id < len(self._kinds):
            raise IndexError(f"token id {token_id} is outside 0 … {len(self._kinds) - 1}")
        kind: int = self._kinds[token_id]
        return kind == SPECIAL

    @property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token, at least 1; looked for once."""
        if self._max_token_bytes is None:
            lengths = np.diff(np.asarray(self._offsets).astype(np.int64))
            self._max_token_bytes = max(1, int(lengths.max(initial=0)))
        return self._max_token_bytes

    def fingerprint(self) -> str:
        """32 hexadecimal digits of every token's bytes and kind."""
        digest = hashlib.sha256()
        for part in (self._offsets, self._kinds, self._blob):
            digest.update(part)
        return digest.hexdigest()[:32]

    def special_ids(self) -> list[int]:
        """All control tokens, ascending."""
        return [int(i) for i in np.flatnonzero(np.asarray(self._kinds) == SPECIAL)]


def pack_table(header: Mapping[str, Any], pieces: Sequence[bytes], kinds: bytes) -> bytes:
    """Serialise a table. pieces [n] and kinds [n] are in id order."""
    assert len(pieces) == len(kinds)
    offsets = np.zeros(len(pieces) + 1, dtype="<u4")
    np.cumsum([len(p) for p in pieces], out=offsets[1:])
    text = json.dumps({**header, "num_tokens": len(pieces)}).encode()
    text += b" " * (-len(text) % 4)
    return b"".join(
        (MAGIC, struct.pack("<I", len(text)), text, offsets.tobytes(), kinds, b"".join(pieces))
    )


def unpack_table(data: bytes | mmap.mmap) -> TokenTable:
    """Read a packed table without copying it. Raises ValueError when it is not whole."""
    view = memoryview(data)
    if len(view) < 12 or view[:8] != MAGIC:
        raise ValueError("not a token table")
    (header_bytes,) = struct.unpack_from("<I", view, 8)
    start = 12 + header_bytes
    if start > len(view):
        raise ValueError("token table cut short")
    header = json.loads(bytes(view[12:start]))
    n = header["num_tokens"]
    blob_at = start + 4 * (n + 1) + n
    if n < 0 or blob_at > len(view):
        raise ValueError("token table cut short")
    offsets = np.frombuffer(view, dtype="<u4", count=n + 1, offset=start)
    kinds = np.frombuffer(view, dtype=np.uint8, count=n, offset=start + 4 * (n + 1))
    blob = view[blob_at:]
    if len(blob) != int(offsets[-1]) or np.any(np.diff(offsets.astype(np.int64)) < 0):
        raise ValueError("token table cut short")
    return TokenTable(header, offsets, kinds, blob)


def map_table(path: Path) -> TokenTable:
    """Map a table file. Raises OSError or ValueError when it is missing or damaged."""
    with path.open("rb") as file:
        return unpack_table(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
