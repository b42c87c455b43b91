"""The answer of GET /cache. A salt is a secret: only who names it sees it named."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from headrace.engine.config import EngineConfig
from headrace.engine.prefix.inspection import SaltSummary
from headrace.engine.prefix.saved_read import RestoreReport
from headrace.server.cache_look import CacheLook
from headrace.server.meter import StepMeter

#: Salts that are listed, the largest ones; the rest is summed up.
MAX_SALTS = 100


class CacheAnswer:
    """key: random; names of salts made with it tell nothing to who does not have it."""

    def __init__(self, config: EngineConfig, windows: tuple[int | None, ...], key: bytes) -> None:
        self._config = config
        self._windows = windows
        self._key = key

    def of(self, look: CacheLook, meter: StepMeter, salt: str) -> dict[str, Any]:
        """salt: the asking one's own, "" = none."""
        block_bytes = self._config.pools.block_bytes
        salts = sorted(look.salts, key=lambda line: line.held_bytes, reverse=True)
        pinned = sum(n * size for n, size in zip(look.pinned_counts, block_bytes, strict=True))
        return {
            "object": "cache",
            "enabled": look.enabled,
            "block_size": self._config.block_size,
            "nodes": sum(line.num_nodes for line in salts),
            "positions": sum(line.num_positions for line in salts),
            "bytes": sum(line.held_bytes for line in salts),
            "evicted_positions": look.stats.num_evicted_tokens,
            "hits": _hits(meter),
            "restored": _restored(look.restored),
            "pools": self._pools(look),
            "pinned": {
                "pins": len(look.pins),
                "positions": sum(pin.num_positions for pin in look.pins),
                "bytes": pinned,
                "broken": look.num_broken_pins,
            },
            "num_salts": len(salts),
            "salts": [self._salt(line, salt) for line in salts[:MAX_SALTS]],
            "pins": _pins(look, salt),
        }

    def _pools(self, look: CacheLook) -> list[dict[str, Any]]:
        block_bytes = self._config.pools.block_bytes
        return [
            {
                "window": window,
                "block_bytes": size,
                "blocks": pool.num_blocks,
                "held": pool.num_held,
                "cached": pool.num_cached,
                "free": pool.num_blocks - pool.num_held - pool.num_cached,
            }
            for pool, window, size in zip(look.pools, self._windows, block_bytes, strict=True)
        ]

    def _salt(self, line: SaltSummary, own: str) -> dict[str, Any]:
        return {
            "salt_hash": self.salt_name(line.salt),
            "own": line.salt == own,
            "nodes": line.num_nodes,
            "positions": line.num_positions,
            "bytes": line.held_bytes,
        }

    def salt_name(self, salt: str) -> str | None:
        """What others may see of a salt: another name at every start; None of no salt."""
        if not salt:
            return None
        return hashlib.blake2b(salt.encode(), key=self._key, digest_size=8).hexdigest()


def _pins(look: CacheLook, salt: str) -> list[dict[str, Any]]:
    """Those of a salt, and of no other: who has the id can release it."""
    since_boot, now = time.monotonic(), time.time()
    return [
        {
            "id": pin.pin_id,
            "tokens": pin.num_positions,
            "expires_at": None if pin.ends_s is None else round(now + pin.ends_s - since_boot, 3),
        }
        for pin in look.pins
        if pin.salt == salt
    ]


def _restored(report: RestoreReport | None) -> dict[str, Any] | None:
    """What came from disk at start."""
    if report is None:
        return None
    return {
        "nodes": report.num_nodes,
        "positions": report.num_positions,
        "bytes": report.num_bytes,
        "dropped_nodes": report.num_dropped,
        "left_out_nodes": report.num_left_out,
        "reason": report.reason,
    }


def _hits(meter: StepMeter) -> dict[str, Any]:
    """Of all prompts computed so far that looked in the cache."""
    requests, tokens = meter.num_lookups, meter.num_looked_up_tokens
    return {
        "requests": requests,
        "requests_hit": meter.num_hits,
        "request_hit_rate": _rate(meter.num_hits, requests),
        "tokens": tokens,
        "tokens_hit": meter.num_cached_tokens,
        "token_hit_rate": _rate(meter.num_cached_tokens, tokens),
    }


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
