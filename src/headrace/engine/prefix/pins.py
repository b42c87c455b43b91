"""Pins: cached prefixes that stay, until they are released or their time is over.

A pin holds the blocks of a prefix like a sequence holds its own: they have another holder than the
tree, so nothing evicts them. Only when a request could otherwise never advance is the oldest pin
broken. Knows no clock: times come from the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.tree import PrefixTree
from headrace.errors import CapacityError, UsageError

#: Pins together hold at most this share of every pool, so that requests have room.
MAX_SHARE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """tokens: of the positions it holds. expires_s: on the caller's clock, None = never."""

    pin_id: int
    tokens: tuple[int, ...]
    salt: str
    blocks: SequenceBlocks
    expires_s: float | None


class Pins:
    """All pins of one tree, oldest first."""

    def __init__(self, manager: BlockManager, tree: PrefixTree) -> None:
        self._manager = manager
        self._tree = tree
        self._pins: dict[int, Pin] = {}
        self._next_id = 1
        self.num_broken = 0  # because a request needed the room

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def pin(self, tokens: Sequence[int], salt: str, expires_s: float | None) -> Pin:
        """Pins what is cached of `tokens`, which may be less than all of them. Raises UsageError
        when nothing is, CapacityError when pins would hold too much."""
        match = self._tree.match(list(tokens), salt)
        if match.num_stored == 0:
            raise UsageError("Nothing of this prefix is in the cache: compute it first.")
        blocks = self._tree.share(match)
        pin = Pin(self._next_id, tuple(tokens[: match.num_stored]), salt, blocks, expires_s)
        self._pins[pin.pin_id] = pin
        if not self._within_share():
            self.release(pin.pin_id)
            raise CapacityError(
                f"A pin of {match.num_stored} positions would leave too little of the KV cache: "
                f"all pins together may hold {MAX_SHARE:.0%} of it. Release others, or raise "
                f"kv_cache_memory."
            )
        self._next_id += 1
        return pin

    def release(self, pin_id: int) -> bool:
        """Lets go of a pin; whether there was one. Its prefix stays cached like any other."""
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return False
        self._manager.close(pin.blocks)
        return True

    def expire(self, now_s: float) -> None:
        """Releases the pins whose time is over."""
        over = [p for p in self if p.expires_s is not None and p.expires_s <= now_s]
        for pin in over:
            self.release(pin.pin_id)

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
        for group, pool in enumerate(self._manager.pools):
            held = {block for pin in self for block in pin.blocks.held(group)}
            if len(held) > pool.num_blocks * MAX_SHARE:
                return False
        return True
