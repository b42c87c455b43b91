"""Events of the prefix tree: which blocks of tokens became findable and which no longer are.

For routers that send a request where its prefix lies. A block is named by a chained hash: of its
own tokens and of everything before them, the salt included, so equal names mean equal prefixes.
Only full blocks are announced. Knows no block ids: they change with every life of a prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks can be found from now on. parent_hash: of the block before the first one;
    None = they start at position 0. token_ids: block_size for each hash."""

    block_hashes: tuple[bytes, ...]
    parent_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """These blocks are no longer found."""

    block_hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is found any more."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
Listener = Callable[[CacheEvent], None]


def first_hash(salt: str) -> bytes:
    """What a salt's first block is chained to."""
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()


def chain(parent: bytes, run: bytes, page_bytes: int) -> list[bytes]:
    """Hashes of the full pages of a run, each with the one before it in it."""
    hashes = []
    for offset in range(0, len(run) - page_bytes + 1, page_bytes):
        page = run[offset : offset + page_bytes]
        parent = blake2b(page, key=parent, digest_size=_HASH_BYTES).digest()
        hashes.append(parent)
    return hashes
