"""Events: who only listens knows which full blocks can be found."""

from __future__ import annotations

from engine.prefix.drawn import Drawn, ids
from headrace.engine.prefix.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent


def listening(*windows: int | None) -> tuple[Drawn, list[CacheEvent]]:
    events: list[CacheEvent] = []
    return Drawn(*windows, on_event=events.append), events


def stored(event: CacheEvent) -> BlockStored:
    assert isinstance(event, BlockStored)
    return event


def test_full_blocks_are_announced_with_hashes_that_chain() -> None:
    drawn, events = listening()
    drawn.leave("abcd efgh ij")
    first = stored(events.pop())
    assert (len(first.block_hashes), first.parent_hash, first.block_size) == (2, None, 4)
    assert first.token_ids == tuple(ids("abcd efgh"))
    drawn.leave("abcd efgh ijkl")  # the third block is full now
    second = stored(events.pop())
    assert second.parent_hash == first.block_hashes[1]
    assert second.token_ids == tuple(ids("ijkl"))
    drawn.leave("abcd XXXX")
    third = stored(events.pop())
    assert third.parent_hash == first.block_hashes[0]
    assert len({*first.block_hashes, *second.block_hashes, *third.block_hashes}) == 4
    assert events == []


def test_equal_prefixes_have_equal_names_in_every_tree_and_salts_different_ones() -> None:
    (one, a), (two, b) = listening(), listening()
    one.leave("abcd efgh ijkl")
    two.leave("abcd")
    two.leave("abcd efgh ijkl")
    names = [name for event in b for name in stored(event).block_hashes]
    assert list(stored(a[0]).block_hashes) == names
    two.leave("abcd efgh", "salt")
    assert not set(names) & set(stored(b[-1]).block_hashes)
    two.leave("efgh abcd")
    assert not set(names) & set(stored(b[-1]).block_hashes)


def test_what_goes_is_announced_too() -> None:
    drawn, events = listening()
    drawn.leave("abcd efgh ijkl m")
    names = stored(events.pop()).block_hashes
    drawn.tree.evict([1])  # the partly filled one was never announced
    assert events == []
    drawn.tree.evict([1])
    assert events.pop() == BlockRemoved(names[2:])
    drawn.leave("abcd XXXX")
    other = stored(events.pop()).block_hashes
    drawn.tree.evict([1])
    assert events.pop() == BlockRemoved(names[1:2])
    drawn.tree.forget(ids("abcd"))
    assert events == [BlockRemoved(other), BlockRemoved(names[:1])]
    drawn.leave("abcd")
    drawn.tree.clear()
    assert events[-1] == AllBlocksCleared()
