"""Rules of the prefix tree where every group is full, each small enough to follow on paper.

A picture has a line for each node: its pages of four tokens, and its blocks.
"""

from __future__ import annotations

import pytest

from engine.prefix.drawn import Drawn, ids, names


def test_what_a_sequence_computed_is_shared_with_one_that_begins_alike() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh ij")
    assert drawn.picture() == ["abcd efgh ij: 0 1 2"]
    assert drawn.pool.num_reclaimable == 3
    match = drawn.match("abcd efXX")
    assert (match.num_matched, match.num_stored, match.start, match.short_reason) == (6, 6, 6, None)
    blocks = drawn.share(match)
    assert blocks.held(0) == [0, 1]
    assert drawn.pool.num_reclaimable == 1
    drawn.manager.extend(blocks, 6, 2)  # writes into the shared second block: a copy comes first
    assert blocks.held(0) == [0, 3]
    assert drawn.manager.take_copies() == [(0, 1, 3)]
    assert drawn.insert("abcd efXX", blocks) == 4  # the positions of its second block
    assert drawn.picture() == ["abcd: 0", "  efXX: 3", "  efgh ij: 1 2"]
    drawn.check()


@pytest.mark.parametrize(
    ("prompt", "matched", "start"),
    [
        ("X", 0, 0),
        ("a", 1, 0),
        ("aX", 1, 1),
        ("abc", 3, 2),
        ("abcX", 3, 3),
        ("abcd", 4, 3),
        ("abcd X", 4, 4),
        ("abcd eX", 5, 5),
        ("abcd efgh", 8, 7),
        ("abcd efgh X", 8, 8),
        ("abcd efgh i", 9, 8),
        ("abcd efgh ij", 10, 9),
        ("abcd efgh ijX", 10, 10),
        ("abcd efgh ijk", 10, 10),
    ],
)
def test_matches_are_exact_to_the_token(prompt: str, matched: int, start: int) -> None:
    """A prompt that is there to its end computes its last token again, for its logits."""
    drawn = Drawn()
    drawn.leave("abcd efgh ij")
    assert drawn.found(prompt) == (matched, matched, start)
    assert drawn.tree.peek(ids(prompt)) == start
    blocks = drawn.share(drawn.match(prompt))
    assert blocks.held(0) == [0, 1, 2][: -(-matched // 4)]


def test_the_empty_prompt_and_the_empty_tree_match_nothing() -> None:
    drawn = Drawn()
    assert drawn.found("abcd") == (0, 0, 0)
    assert drawn.share(drawn.match("abcd")).held(0) == []
    drawn.leave("abcd")
    assert drawn.found("") == (0, 0, 0)
    assert drawn.tree.insert([], drawn.compute("a"), 0) == 0


def test_a_longer_run_continues_the_leaf_in_place() -> None:
    drawn = Drawn()
    drawn.leave("abcd")
    blocks = drawn.start("abcd efgh ij")
    assert drawn.insert("abcd efgh ij", blocks) == 6
    assert drawn.picture() == ["abcd efgh ij: 0 1 2"]


def test_a_page_takes_the_place_of_its_beginning() -> None:
    """B i n g o, one token a turn: what lies in partly filled blocks is never left twice."""
    drawn = Drawn()
    drawn.leave("abcd ef")
    assert drawn.picture() == ["abcd ef: 0 1"]
    blocks = drawn.start("abcd efg")
    assert blocks.held(0) == [0, 2]
    assert drawn.insert("abcd efg", blocks) == 1
    assert drawn.picture() == ["abcd efg: 0 2"]
    drawn.manager.close(blocks)
    assert drawn.manager.free_counts == (30,)
    drawn.leave("abcd efgh ij")
    assert names(drawn) == ["abcd efgh ij"]


def test_a_leaf_of_one_page_is_replaced_too() -> None:
    drawn = Drawn()
    drawn.leave("ab")
    drawn.leave("abX")
    drawn.leave("abX")
    assert names(drawn) == ["abX"]
    drawn.leave("abcd e")
    drawn.leave("abcd fg")
    drawn.leave("abcd fgh")  # beside another child
    assert names(drawn) == ["abX", "abcd", "e", "fgh"]


def test_a_sequence_whose_last_block_is_kept_copies_it_before_it_writes_on() -> None:
    drawn = Drawn()
    blocks = drawn.compute("abcd ef")
    assert blocks.num_writable == 8
    drawn.insert("abcd", blocks)
    assert blocks.num_writable == 8  # 6 and 7 are still in a block of its own
    drawn.insert("abcd ef", blocks)
    assert blocks.num_writable == 0
    drawn.manager.extend(blocks, 6, 1)
    assert drawn.manager.take_copies() == [(0, 1, 2)]


def test_the_beginning_of_a_page_that_is_there_is_not_inserted() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh ij")
    for text in ("a", "abcd", "abcd e", "abcd efgh", "abcd efgh i"):
        blocks = drawn.compute(text)
        assert drawn.insert(text, blocks) == 0
        drawn.manager.close(blocks)
        drawn.check()
    assert drawn.picture() == ["abcd efgh ij: 0 1 2"]
    assert drawn.tree.num_tokens == 10


def test_what_was_computed_twice_is_kept_once() -> None:
    drawn = Drawn()
    first, second = drawn.compute("abcd efgh"), drawn.compute("abcd efgh ijkl")
    assert drawn.insert("abcd efgh", first) == 8
    assert drawn.insert("abcd efgh ijkl", second) == 4
    assert drawn.picture() == ["abcd efgh ijkl: 0 1 4"]
    drawn.check()
    drawn.manager.close(first)
    drawn.manager.close(second)
    assert drawn.manager.free_counts == (29,)


def test_runs_split_at_block_borders_only() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh ijkl")
    drawn.leave("abcd efgh iXkl")  # differs inside the third page
    drawn.leave("abcd Yfgh")
    drawn.leave("aZcd")  # differs inside the first page: nothing is cut
    assert drawn.picture() == [
        "aZcd: 3",  # blocks 3 and 4 were another time's "abcd efgh"
        "abcd: 0",
        "  Yfgh: 4",
        "  efgh: 1",
        "    iXkl: 5",
        "    ijkl: 2",
    ]
    assert drawn.found("abcd efgh iXkZ") == (11, 11, 11)
    assert drawn.found("aZZ") == (2, 2, 2)
    assert drawn.tree.num_nodes == 6


def test_the_nearest_of_many_children_is_found() -> None:
    """10,000 siblings: token-granular matches go to the right one, whatever lies around it."""
    drawn = Drawn(num_blocks=10_001)
    for i in range(10_000):
        tokens = [i * 37 % 10_000, i % 7, 256 * i, 9]
        blocks = drawn.compute("abcd")
        drawn.tree.insert(tokens, blocks, 4)
        drawn.manager.close(blocks)
    drawn.check()
    for i in (0, 1, 4_999, 9_999):
        tokens = [i * 37 % 10_000, i % 7, 256 * i, 9]
        for length in (1, 2, 3):
            match = drawn.tree.match([*tokens[:length], 70_000, 70_000])
            assert match.num_matched == length
            node = match.path[-1]
            assert node.tokens.startswith(
                b"".join(t.to_bytes(4, "little") for t in tokens[:length])
            )


def test_salts_share_nothing() -> None:
    drawn = Drawn()
    drawn.leave("abcd", "x")
    drawn.leave("abcd", "y")
    assert drawn.found("abcd") == (0, 0, 0)
    assert drawn.match("abcd", "x").path != drawn.match("abcd", "y").path
    assert drawn.picture() == ["abcd: 0", "abcd: 1"]
    lines = drawn.tree.summary([100])
    assert [(line.salt, line.num_nodes, line.num_positions, line.held_bytes) for line in lines] == [
        ("x", 1, 4, 100),
        ("y", 1, 4, 100),
    ]
    drawn.tree.evict([1])
    assert [line.salt for line in drawn.tree.summary([100])] == ["y"]


def test_several_full_groups_go_together() -> None:
    drawn = Drawn(None, None)
    drawn.manager.pools[1].scatter(seed=1)
    first = drawn.compute("abcd efgh")
    drawn.insert("abcd efgh", first)
    second = drawn.share(drawn.match("abcd eX"))
    assert first.held(0) == second.held(0) == [0, 1]
    assert first.held(1) == second.held(1) != [0, 1]
    drawn.leave("abcd XXXX")  # splits the node: every group's blocks stay with their columns
    third = drawn.share(drawn.match("abcd efgh"))
    assert third.held(1) == first.held(1)


def test_a_match_may_not_be_shared_once_the_tree_has_changed() -> None:
    drawn = Drawn()
    drawn.leave("abcd")
    match = drawn.match("abcd e")
    drawn.leave("efgh")
    with pytest.raises(AssertionError, match="changed"):
        drawn.tree.share(match)


# ---- promises -----------------------------------------------------------------------------------


def test_promised_blocks_are_shared_as_a_whole_or_not_at_all() -> None:
    """Copies are made before the step, so a block that the step writes cannot be copied."""
    drawn = Drawn()
    first = drawn.compute("abcd efgh ij")
    assert drawn.tree.promise(ids("abcd efgh ij"), first, 10, 0) == 8
    assert drawn.picture() == ["abcd efgh: 0 1"]
    assert drawn.found("abcd efgh iX") == (8, 8, 8)
    match = drawn.match("abcd efX")
    assert (match.num_matched, match.num_stored, match.start) == (6, 4, 4)
    assert match.short_reason is not None
    assert "positions 4 to 5" in match.short_reason
    assert drawn.found("abcd efgh") == (8, 8, 7)
    drawn.tree.settle()
    assert drawn.found("abcd efX") == (6, 6, 6)


def test_of_a_promise_only_what_the_step_writes_is_unwritten() -> None:
    drawn = Drawn()
    blocks = drawn.compute("abcd ef")
    drawn.tree.promise(ids("abcd ef"), blocks, 6, 0)
    drawn.tree.settle()
    drawn.manager.extend(blocks, 6, 6)
    drawn.tree.promise(ids("abcd efgh ijkl"), blocks, 12, 6)  # from inside the second block on
    assert drawn.found("abX") == (2, 2, 2)
    assert drawn.found("abcd eX") == (5, 4, 4)
    assert drawn.found("abcd efgh iX") == (9, 8, 8)


def test_a_failed_step_is_forgotten() -> None:
    drawn = Drawn()
    blocks = drawn.compute("abcd efgh")
    drawn.tree.promise(ids("abcd efgh"), blocks, 8, 0)
    drawn.tree.clear()
    drawn.check()
    assert drawn.found("abcd efgh") == (0, 0, 0)
    assert drawn.tree.num_nodes == drawn.tree.num_tokens == 0


def test_forgetting_lets_a_branch_go() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh")
    drawn.leave("abcd ijkl")
    drawn.leave("mnop")
    drawn.tree.forget(ids("abcd efX"))
    assert names(drawn) == ["mnop"]
    drawn.check()


# ---- faults met elsewhere -----------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(None,), (None, 21), (13,)])
def test_row_1_equal_prompts_of_one_step_share_every_whole_block(
    windows: tuple[int | None, ...],
) -> None:
    """Eight copies of one prompt, all scheduled before any is computed."""
    drawn = Drawn(*windows)
    prompt = [7 * i % 50 for i in range(30)]
    tables = []
    for _ in range(8):
        match = drawn.tree.match(prompt)
        blocks = drawn.share(match)
        drawn.manager.extend(blocks, match.num_stored, 30 - match.num_stored)
        drawn.tree.promise(prompt, blocks, 30, match.start, entry_from=28)
        tables.append(blocks)
        assert match.start == (28 if len(tables) > 1 else 0)
    assert drawn.manager.take_copies() == [], "a copy of what is not written yet"
    drawn.tree.settle()
    drawn.check()
    for group in range(len(windows)):
        first = tables[1].first_columns[group]
        shared = {tuple(blocks.tables[group][first:7].tolist()) for blocks in tables}
        last = [int(blocks.tables[group][7]) for blocks in tables]
        assert len(shared) == 1
        assert len(set(last)) == 8


@pytest.mark.parametrize("windows", [(None,), (None, 21), (13,)])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 31])
def test_row_2_the_same_prompt_again_computes_its_last_token_only(
    windows: tuple[int | None, ...], length: int
) -> None:
    drawn = Drawn(*windows)
    prompt = [7 * i % 50 for i in range(length)]
    first = drawn.compute("x" * length)
    drawn.tree.insert(prompt, first, length, entry_from=0)
    drawn.manager.close(first)
    match = drawn.tree.match(prompt)
    assert (match.num_stored, match.start) == (length, length - 1)
    second = drawn.share(match)
    assert drawn.manager.can_enter(second, match.start) is None
    # The next token is written at `length`: where the last block is partly filled, into a copy.
    drawn.manager.extend(second, length, 1)
    copies = drawn.manager.take_copies()
    assert len(copies) == (len(windows) if length % 4 else 0)


def test_row_5_a_prompt_of_two_and_a_half_blocks_twice_in_one_step() -> None:
    """The second one reads the first one's whole blocks, and its positions go on behind them."""
    drawn = Drawn()
    prompt = ids("abcd efgh ij")
    first = drawn.compute("abcd efgh ij")
    drawn.tree.promise(prompt, first, 10, 0)
    match = drawn.tree.match(prompt)
    second = drawn.share(match)
    assert (match.start, match.num_stored) == (8, 8)
    drawn.manager.extend(second, 8, 2)
    assert second.held(0) == [0, 1, 3]
    assert first.held(0) == [0, 1, 2]


# ---- accounts -----------------------------------------------------------------------------------


def test_stats_count_tokens() -> None:
    drawn = Drawn()
    drawn.leave("abcd efgh")
    drawn.match("abcd eX")
    drawn.tree.match(ids("abcd"), counts=False)
    drawn.tree.peek(ids("abcd"))
    drawn.tree.evict([1])
    stats = drawn.tree.stats
    assert (stats.num_queries, stats.num_queried_tokens, stats.num_hit_tokens) == (1, 6, 5)
    assert (stats.num_inserted_tokens, stats.num_evicted_tokens) == (8, 4)


def test_nodes_come_most_recently_used_first_and_below_their_parents() -> None:
    drawn = Drawn()
    for text in ("abcd efgh", "abcd ijkl", "mnop", "qrst"):
        drawn.leave(text)
    drawn.match("abcd efgh X")
    drawn.match("mnop X")
    letters = [node.tokens[::4].decode() for _, node in drawn.tree.nodes()]
    assert letters == ["mnop", "abcd", "efgh", "qrst", "ijkl"]
