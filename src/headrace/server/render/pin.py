"""The answer of /cache/pin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headrace.engine.prefix.pins import Pin
from headrace.server.job import Job
from headrace.server.render.answer import dump, usage
from headrace.server.render.unstreamed import Unstreamed


class PinRenderer(Unstreamed):
    """Tells of one pin, once `pinned` was called (on the engine's thread)."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}

    @property
    def id(self) -> str | None:
        return self._answer.get("id")

    def pinned(self, pin: Pin, ttl_s: float | None) -> None:
        """What there is to tell. ttl_s: from now on."""
        now = time.time()
        self._answer = {
            "id": pin.pin_id,
            "object": "cache.pin",
            "created": int(now),
            "tokens": len(pin.tokens),
            "expires_at": None if ttl_s is None else round(now + ttl_s, 3),
        }

    def whole(self, jobs: Sequence[Job]) -> bytes:
        return dump({**self._answer, "usage": usage(jobs)})
