"""What is in the KV cache: pools, prefix tree, pins. Taken on the engine's thread, shown by any."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.engine.core import Engine
from headrace.engine.pools import BlockPool
from headrace.engine.prefix.inspection import SaltSummary
from headrace.engine.prefix.saved_read import RestoreReport
from headrace.engine.prefix.tree import CacheStats


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Blocks of one KV group. num_held: by requests and pins; num_cached: by nobody but the prefix
    tree; the rest is free."""

    num_blocks: int
    num_held: int
    num_cached: int


def pool_use(pool: BlockPool) -> PoolUse:
    """May be called beside a step: then a few blocks may be on their way."""
    num_cached = pool.num_reclaimable
    num_held = max(pool.num_blocks - pool.num_free - num_cached, 0)
    return PoolUse(pool.num_blocks, num_held, num_cached)


@dataclass(frozen=True, slots=True)
class PinLook:
    """A pin. ends_s: monotonic clock, None = never."""

    pin_id: str
    salt: str
    num_positions: int
    ends_s: float | None


@dataclass(frozen=True, slots=True)
class CacheLook:
    """The cache at one moment; without a prefix tree (enabled False) only the pools say something.

    pinned_counts: blocks of each group that pins hold. stats: as they were then. restored: what
    came from disk at start, None = nothing was looked for.
    """

    enabled: bool
    pools: list[PoolUse]
    salts: list[SaltSummary]
    pins: list[PinLook]
    pinned_counts: list[int]
    num_broken_pins: int
    stats: CacheStats
    restored: RestoreReport | None


def take_look(engine: Engine) -> CacheLook:
    """On the engine's thread. Ends the pins whose time is over."""
    engine.cache.expire()
    pools = [pool_use(pool) for pool in engine.manager.pools]
    tree, pins = engine.cache.tree, engine.cache.reuse.pins
    if tree is None or pins is None:
        return CacheLook(False, pools, [], [], [0] * len(pools), 0, CacheStats(), None)
    return CacheLook(
        True,
        pools,
        tree.summary(engine.config.pools.block_bytes),
        [PinLook(pin.pin_id, pin.salt, len(pin.tokens), pin.expires_s) for pin in pins],
        pins.held_counts,
        pins.num_broken,
        replace(tree.stats),
        engine.cache.restored,
    )
