"""What goes when blocks run short (blocks of 4; the window, where there is one, is 6)."""

from __future__ import annotations

from collections.abc import Iterator

from engine.prefix.drawn import Drawn, ids, names


def test_the_least_recently_used_leaf_goes_from_its_tail_on() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh ijkl")
    drawn.leave("mnop qrst")
    assert drawn.tree.evict([2])
    assert names(drawn) == ["abcd", "mnop qrst"]
    assert drawn.manager.free_counts == (29,)
    drawn.match("abcd X")
    drawn.tree.evict([1])
    assert names(drawn) == ["abcd", "mnop"]
    drawn.tree.evict([1])
    assert names(drawn) == ["abcd"]
    drawn.check()


def test_who_lets_the_last_of_a_salt_go_looks_at_no_other_salt() -> None:
    """With as many salts as blocks, room for a prompt would take seconds."""

    class Unseen(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("somebody looks at all salts")

        keys = values = items = __iter__  # type: ignore[assignment]

    for window in (None, 6):
        drawn = Drawn(window)
        for salt in "xyz":
            drawn.leave("abcd", salt)
        store = drawn.tree.store
        store.roots = Unseen(store.roots)
        for left in ({"y", "z"}, {"z"}, set()):
            assert drawn.tree.evict([1])
            assert {salt for salt in "xyz" if salt in store.roots} == left


def test_a_partly_filled_block_is_a_block() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh i")
    drawn.tree.evict([1])
    assert names(drawn) == ["abcd efgh"]
    assert drawn.tree.stats.num_evicted_tokens == 1


def test_parents_go_after_their_children() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh")
    drawn.leave("abcd ijkl")
    drawn.match("abcd X")
    for expected in (["abcd", "ijkl"], ["abcd"], []):
        assert drawn.tree.evict([1])
        assert names(drawn) == expected
    assert not drawn.tree.evict([1])
    assert drawn.manager.free_counts == (32,)


def test_what_others_hold_stays_and_counts_as_used() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh")
    held = drawn.share(drawn.match("abcd X"))
    drawn.leave("ijkl")
    drawn.tree.evict([1])  # the oldest leaf ends with a block that nobody else holds
    assert names(drawn) == ["abcd", "ijkl"]
    drawn.tree.evict([1])
    assert names(drawn) == ["abcd"]
    assert not drawn.tree.evict([3])
    assert names(drawn) == ["abcd"]
    drawn.leave("mnop")
    drawn.manager.close(held)
    drawn.tree.evict([1])
    assert names(drawn) == ["mnop"]
    drawn.check()


def test_all_that_is_reclaimable_can_be_had() -> None:
    """The tree's first blocks are nobody's; behind them lie some that a sequence holds, because it
    computed the beginning a second time. They are let go when there is no other way."""
    drawn = Drawn(num_blocks=8)
    first = drawn.compute("abcd efgh")
    second = drawn.compute("abcd efgh ijkl")
    drawn.insert("abcd efgh", first)
    drawn.insert("abcd efgh ijkl", second)
    drawn.manager.close(first)
    assert (drawn.pool.num_free, drawn.pool.num_reclaimable) == (3, 2)
    drawn.tree.evict([1])
    assert names(drawn) == ["abcd"]
    assert (drawn.pool.num_free, drawn.pool.num_reclaimable) == (4, 1)
    drawn.tree.evict([5])
    assert names(drawn) == []
    assert (drawn.pool.num_free, drawn.pool.num_reclaimable) == (5, 0)
    drawn.check()


def test_only_what_is_short_goes() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl mnop")
    drawn.leave("qrst uvwx yzAB CDEF")
    assert not drawn.tree.evict([0, 0])
    drawn.tree.evict([0, 1])
    assert names(drawn) == ["qrst uvwx yzAB CDEF"]
    assert drawn.tree.evict([3, 0])  # all of the leaf: no part of it could be entered
    assert names(drawn) == []
    assert drawn.manager.free_counts == (32, 32)


def test_entries_of_inner_nodes_go_without_their_node() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl")
    drawn.leave("abcd efgh XXXX")
    drawn.leave("abcd efgh", entry=8)
    drawn.leave("abcd efgh", entry=0)
    assert names(drawn) == ["abcd efgh", "XXXX", "ijkl"]
    drawn.match("abcd efgh ijkl Y")
    drawn.match("abcd efgh XXXX Y")
    assert drawn.found("abcd efgh Y") == (8, 8, 8)
    drawn.match("abcd efgh ijkl Y")
    drawn.match("abcd efgh XXXX Y")
    drawn.tree.evict([0, 1])
    assert names(drawn) == ["abcd efgh", "XXXX", "ijkl"]
    assert drawn.found("abcd efgh Y") == (8, 0, 0)
    assert drawn.found("abcd efgh ijkl Y") == (12, 12, 12)
    drawn.check()


def test_a_node_that_nobody_can_enter_is_joined_with_its_only_child() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh", entry=0)
    drawn.leave("abcd efgh ijkl mnop")
    assert names(drawn) == ["abcd efgh", "ijkl mnop"]
    drawn.match("abcd efgh ijkl mnop Y")
    drawn.tree.evict([0, 1])
    assert names(drawn) == ["abcd efgh ijkl mnop"]
    assert drawn.found("abcd efgh ijkl mnop Y") == (16, 16, 16)
    drawn.check()


def test_what_a_pin_holds_of_an_entry_and_of_a_leaf_stays() -> None:
    """A pin inside a long leaf: its tail and the older part of its window go, the pinned place can
    still be entered."""
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl mnop", entry=4)
    pin = drawn.share(drawn.match("abcd efgh ijX"))
    assert pin.first_columns == [0, 1]
    drawn.tree.evict([0, 1])
    assert drawn.manager.free_counts[1] == 29  # column 0 went
    assert drawn.found("abcd efgh ijX") == (10, 10, 10)
    drawn.tree.evict([1, 0])
    assert names(drawn) == ["abcd efgh ijkl"]
    assert drawn.found("abcd efgh ijX") == (10, 10, 10)
    drawn.check()


def test_entries_that_share_their_blocks_can_be_had_too() -> None:
    """The end of a node and the end of the leaf below it see the same blocks: letting go of one of
    the two frees less than all."""
    drawn = Drawn(6)
    drawn.leave("abcd efgh ij", entry=0)
    drawn.leave("abcd efgh", entry=0)
    assert names(drawn) == ["abcd efgh", "ij"]
    assert drawn.pool.tree_counts.tolist()[:3] == [2, 2, 1]
    assert drawn.pool.num_reclaimable == 3
    assert drawn.tree.evict([3])
    assert names(drawn) == []
    assert drawn.pool.num_free == 32


def test_evicting_more_than_there_is_frees_what_there_is() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh")
    assert drawn.tree.evict([99, 99])
    assert drawn.manager.free_counts == (32, 32)
    assert not drawn.tree.evict([99, 99])
    assert drawn.tree.match(ids("abcd")).num_matched == 0
