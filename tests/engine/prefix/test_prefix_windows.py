"""Rules of the prefix tree where groups have windows (blocks of 4, the window is 6).

A query at p sees p − 5 … p. A picture shows, behind @, from where on a node can be entered.
"""

from __future__ import annotations

import pytest

from engine.prefix.drawn import Drawn, ids, names


def test_a_prompt_is_entered_at_its_end_and_nowhere_before() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl mnop")
    assert drawn.picture() == ["abcd efgh ijkl mnop: 0 1 2 3 @16"]
    # Of the window group only 11 … 15 are kept: columns 2 and 3.
    assert list(drawn.manager.pools[1].tree_counts[:4]) == [0, 0, 1, 1]
    match = drawn.match("abcd efgh ijkl mnop X")
    assert (match.num_stored, match.start, match.short_reason) == (16, 16, None)
    blocks = drawn.share(match)
    assert (blocks.held(0), blocks.held(1)) == ([0, 1, 2, 3], [2, 3])
    assert (blocks.first_columns, blocks.num_columns) == ([0, 2], [4, 4])
    assert drawn.manager.can_enter(blocks, 16) is None
    match = drawn.match("abcd efgh ijkl mX")
    assert (match.num_matched, match.num_stored, match.start) == (13, 0, 0)
    assert match.short_reason is not None
    assert "13 positions match" in match.short_reason
    assert "sliding-window" in match.short_reason
    assert "from position 0" in match.short_reason


def test_what_must_be_enterable_is_said_at_insertion() -> None:
    """The same prompt again enters at its last token: that, too, must have what it sees."""
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl mnop", entry=16)
    assert drawn.found("abcd efgh ijkl mnop") == (16, 0, 0)
    drawn.leave("abcd efgh ijkl mnop", entry=15)  # 10 … 15: columns 2 and 3 as well
    assert drawn.picture() == ["abcd efgh ijkl mnop: 0 1 2 3 @15"]
    assert drawn.found("abcd efgh ijkl mnop") == (16, 16, 15)
    drawn.leave("abcd efgh ijkl mnop", entry=16)  # nothing is lost by asking for less
    assert drawn.found("abcd efgh ijkl mnX") == (14, 0, 0)
    drawn.leave("abcd efgh ijkl mnop", entry=13)
    assert drawn.found("abcd efgh ijkl mnX") == (14, 14, 14)
    assert drawn.found("abcd efgh ijkl mX") == (13, 13, 13)
    assert drawn.found("abcd efgh ijkl X") == (12, 0, 0)


def test_without_an_entry_nothing_is_inserted() -> None:
    drawn = Drawn(None, 6)
    blocks = drawn.compute("abcd efgh")
    assert drawn.tree.insert(ids("abcd efgh"), blocks, 8) == 0
    assert drawn.picture() == []


def test_an_entry_reaches_back_as_far_as_the_sequence_still_holds_its_window() -> None:
    drawn = Drawn(None, 6)
    blocks = drawn.compute("abcd efgh ijkl mnop")
    drawn.manager.trim(blocks, 16)  # columns 0 and 1 went: 11 … 15 are needed, 8 … 15 are there
    assert drawn.insert("abcd efgh ijkl mnop", blocks, entry=0) == 16
    assert drawn.picture() == ["abcd efgh ijkl mnop: 0 1 2 3 @13"]
    drawn.tree.clear()
    drawn.manager.trim(blocks, 18)  # now 12 … 15: not enough for 16
    assert drawn.insert("abcd efgh ijkl mnop", blocks, entry=0) == 0
    assert drawn.picture() == []


def test_nodes_end_where_entries_are() -> None:
    r"""Prompt, answer, next prompt, each a node; a shorter hit ends at one of their ends.

    0        12           20
    |--------|------------|     a longer match than 12 that ends before 20 goes on from 12
         @12          @20
    """
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl")
    drawn.leave("abcd efgh ijkl mnop qrst")
    assert drawn.picture() == ["abcd efgh ijkl: 0 1 2 @12", "  mnop qrst: 6 7 @20"]
    match = drawn.match("abcd efgh ijkl mnop X")
    assert (match.num_matched, match.num_stored, match.start) == (16, 12, 12)
    assert match.short_reason is not None
    assert "positions 12 to 15" in match.short_reason
    blocks = drawn.share(match)
    assert blocks.held(0) == [0, 1, 2]
    assert blocks.first_columns == [0, 1]
    assert drawn.found("abcd efgh ijkl mnop qrst uvw") == (20, 20, 20)


def test_a_split_leaves_the_upper_half_what_still_covers_its_end() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl mnop", entry=11)
    drawn.leave("abcd efgh ijkl XXXX")
    assert [line.split(":")[0] for line in drawn.picture()] == [
        "abcd efgh ijkl",
        "  XXXX",
        "  mnop",
    ]
    assert drawn.found("abcd efgh ijkl YYYY") == (12, 12, 12)
    assert drawn.found("abcd efgh ijkl mY") == (13, 13, 13)
    drawn.leave("abcd ZZZZ")
    assert "abcd: 0" in drawn.picture()  # nobody can enter at 4
    assert drawn.found("abcd Y") == (4, 0, 0)


def test_an_insertion_makes_all_nodes_enterable_that_end_in_its_range() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl")
    drawn.leave("abcd XXXX XXXX")
    assert drawn.picture()[0] == "abcd: 0"
    drawn.leave("abcd efgh ijkl mnop", entry=4)
    assert [line.split(": ")[0].strip() for line in drawn.picture() if "@4" in line] == [
        "abcd",
        "efgh ijkl",
        "mnop",
    ]
    assert drawn.found("abcd Y") == (4, 4, 4)


def test_a_sequence_that_ends_inside_a_node_splits_it() -> None:
    """A discovered branch: from the next time on it can be entered."""
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl mnop")
    assert drawn.found("abcd efgh iX") == (9, 0, 0)
    drawn.leave("abcd efgh")
    assert drawn.picture() == ["abcd efgh: 0 1 @8", "  ijkl mnop: 2 3 @16"]
    assert drawn.found("abcd efgh iX") == (9, 8, 8)
    drawn.leave("abcd efgh ijk")  # inside a page: its border before cannot be entered from 11 on
    assert len(drawn.picture()) == 2
    drawn.leave("abcd efgh ijkl mn", entry=12)
    assert drawn.found("abcd efgh ijkl Y") == (12, 12, 12)


def test_a_partly_filled_page_is_replaced_with_its_entry() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ij", entry=8)
    drawn.leave("abcd efgh ijkl mn")
    assert names(drawn) == ["abcd efgh", "ijkl mn"]
    assert drawn.found("abcd efgh Y") == (8, 8, 8)
    drawn.leave("abcd efgh ijkl mnop qr")  # @14 did not cover 12: nothing of it is left
    assert names(drawn) == ["abcd efgh", "ijkl mnop qr"]
    assert drawn.found("abcd efgh ijkl Y") == (12, 8, 8)


def test_the_better_of_equal_neighbours_is_taken() -> None:
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl", entry=8)
    drawn.leave("abcd efgh ijXX", entry=12)
    drawn.leave("abcd efgh ijYY", entry=12)
    for last in "Aamz":  # before, between and behind the three in order
        assert drawn.found(f"abcd efgh ij{last}") == (10, 10, 10)
    for last in "XY":
        assert drawn.found(f"abcd efgh ij{last}") == (11, 8, 8)


@pytest.mark.parametrize("windows", [(6,), (6, 10), (10, None, 6), (None, None, 6)])
def test_every_group_has_what_a_query_sees(windows: tuple[int | None, ...]) -> None:
    drawn = Drawn(*windows)
    text = "abcd efgh ijkl mnop qr"
    drawn.leave(text, entry=15)
    for length in range(1, 19):
        match = drawn.tree.match([*ids(text)[:length], 1])
        assert match.num_stored == (length if length >= 15 else 0)
        blocks = drawn.share(match)
        assert drawn.manager.can_enter(blocks, match.start) is None
        assert set(blocks.num_columns) == {-(-match.num_stored // 4)}
        drawn.manager.close(blocks)
    drawn.check()
    assert drawn.tree.num_tokens == 18


def test_promised_windows_are_shared_as_a_whole_or_not_at_all() -> None:
    drawn = Drawn(6)
    blocks = drawn.compute("abcd efgh ijkl")
    drawn.tree.promise(ids("abcd efgh ijkl"), blocks, 12, 0, entry_from=8)
    assert drawn.found("abcd efgh ijY") == (10, 8, 8)
    assert drawn.found("abcd efgh ijkl Y") == (12, 12, 12)
    drawn.tree.settle()
    assert drawn.found("abcd efgh ijY") == (10, 10, 10)


def test_where_nothing_is_evicted_a_window_costs_no_more_than_its_blocks() -> None:
    """Entries share blocks: ten turns that overlap hold each block once."""
    drawn = Drawn(6, num_blocks=16)
    text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
    blocks = drawn.manager.open(64)
    assert blocks is not None
    drawn.holders.append(blocks)
    for end in range(4, 41, 4):
        drawn.manager.extend(blocks, end - 4, 4)
        drawn.tree.insert(ids(text)[:end], blocks, end, entry_from=end)
    drawn.check()
    assert drawn.manager.free_counts == (6,)
    assert max(drawn.pool.tree_counts) == 2


def test_the_picture_of_the_page() -> None:
    """The example of docs/prefix-cache.md."""
    drawn = Drawn(None, 6)
    drawn.leave("abcd efgh ijkl")
    drawn.leave("abcd efgh ijkl mnop qr")
    drawn.leave("abcd efgh ijkl mXYZ")
    assert names(drawn) == ["abcd efgh ijkl", "mXYZ", "mnop qr"]
    assert [line.split("@")[1] for line in drawn.picture()] == ["12", "16", "18"]
    assert drawn.found("abcd efgh ijkl mnoZ") == (15, 12, 12)
