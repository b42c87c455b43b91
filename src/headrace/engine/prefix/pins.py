"""Pins: cached prefixes that stay, until they are released or their time is over.

A pin holds the blocks of a prefix like a sequence holds its own: they have another holder than the
tree, so nothing evicts them. Only when a request could otherwise never advance is the oldest pin
broken. Knows no clock: times come from the caller.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.tree import PrefixTree
from headrace.engine.sizing import ceil_div
from headrace.errors import CapacityError, PinsFullError, UsageError

#: Pins together hold at most this share of every pool, so that requests have room.
MAX_SHARE = 0.5
#: Of all: each takes a few kilobytes of tables, however few blocks it holds.
MAX_PINS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """pin_id: random, so that who does not know it cannot guess it. tokens: of the positions it
    holds. expires_s: on the caller's clock, None = never."""

    pin_id: str
    tokens: array[int]
    salt: str
    blocks: SequenceBlocks
    expires_s: float | None


class Pins:
    """All pins of one tree, oldest first."""

    def __init__(self, manager: BlockManager, tree: PrefixTree) -> None:
        self._manager = manager
        self._tree = tree
        self._pins: dict[str, Pin] = {}
        self._held = [Counter[int]() for _ in manager.pools]  # block → pins, of each group
        self._next_end_s = math.inf  # no pin's time is over before
        self.num_broken = 0  # because a request needed the room

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    @property
    def held_counts(self) -> list[int]:
        """Blocks of each group that pins hold, once each."""
        return [len(held) for held in self._held]

    def pin(self, tokens: Sequence[int], salt: str, expires_s: float | None) -> Pin:
        """Pins what is cached of `tokens`, which may be less than all of them. Raises UsageError
        when nothing is, PinsFullError when pins would hold too much."""
        if len(self._pins) >= MAX_PINS:
            raise PinsFullError(f"There are {MAX_PINS:,} pins, and no more may be: release others.")
        match = self._tree.match(list(tokens), salt, counts=False)
        if match.num_stored == 0:
            raise UsageError("Nothing of this prefix is in the cache: compute it first.")
        blocks = self._tree.share(match)
        pin_id = f"pin-{secrets.token_hex(12)}"
        pin = Pin(pin_id, array("i", tokens[: match.num_stored]), salt, blocks, expires_s)
        self._pins[pin_id] = pin
        if expires_s is not None:
            self._next_end_s = min(self._next_end_s, expires_s)
        for group, held in enumerate(self._held):
            held.update(blocks.held(group))
        if not self._within_share():
            self.release(pin_id)
            raise PinsFullError(
                f"A pin of {match.num_stored} positions would leave too little of the KV cache: "
                f"all pins together may hold {MAX_SHARE:.0%} of it. Release others, or raise "
                f"kv_cache_memory."
            )
        return pin

    def check(self, num_positions: int) -> None:
        """Raises CapacityError for what can never be pinned, whatever else is. Any thread."""
        columns = ceil_div(num_positions, self._manager.block_size)
        for window, pool in zip(self._manager.windows, self._manager.pools, strict=True):
            if window is None and columns > pool.num_blocks * MAX_SHARE:
                raise CapacityError(
                    f"{num_positions} positions cannot be pinned: all pins together may hold "
                    f"{MAX_SHARE:.0%} of the KV cache. Raise kv_cache_memory."
                )

    def release(self, pin_id: str) -> bool:
        """Lets go of a pin; whether there was one. Its prefix stays cached like any other."""
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return False
        for group, held in enumerate(self._held):
            for block in pin.blocks.held(group):
                held[block] -= 1
                if not held[block]:
                    del held[block]
        self._manager.close(pin.blocks)
        return True

    def release_all(self) -> int:
        """Lets go of every pin; how many there were."""
        number = len(self._pins)
        for pin_id in list(self._pins):
            self.release(pin_id)
        return number

    def expire(self, now_s: float) -> None:
        """Releases the pins whose time is over."""
        if now_s < self._next_end_s:
            return
        for pin in list(self):
            if pin.expires_s is not None and pin.expires_s <= now_s:
                self.release(pin.pin_id)
        ends = (pin.expires_s for pin in self if pin.expires_s is not None)
        self._next_end_s = min(ends, default=math.inf)

    def break_oldest(self) -> bool:
        """Releases the oldest pin, because somebody cannot do without its blocks."""
        for pin in self:
            self.num_broken += 1
            return self.release(pin.pin_id)
        return False

    def replant(self) -> None:
        """Gives the prefixes of all pins back to a tree that was cleared."""
        for pin in self:
            self._tree.insert(
                list(pin.tokens),
                pin.blocks,
                len(pin.tokens),
                salt=pin.salt,
                entry_from=0,
            )

    def holders(self) -> list[SequenceBlocks]:
        """Block tables of all pins (for checks and accounts)."""
        return [pin.blocks for pin in self]

    def _within_share(self) -> bool:
        return all(
            len(held) <= pool.num_blocks * MAX_SHARE
            for held, pool in zip(self._held, self._manager.pools, strict=True)
        )
