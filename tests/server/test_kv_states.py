"""Blocks by state: counts that add up, and maps that agree with the holders, block by block."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.engine.pools import BlockPool, RunPool
from headrace.server.kv_states import STATES, block_states, state_counts, state_map

LETTER = {"free": "f", "owned": "o", "shared": "s", "cached": "c"}


def lived_in(num_blocks: int, seed: int) -> tuple[BlockPool, list[str]]:
    """A pool after random holders came and went, and what each block is, kept beside it."""
    rng, pool = random.Random(seed), BlockPool(num_blocks)
    holders, in_tree = [0] * num_blocks, [False] * num_blocks
    for _ in range(num_blocks * 3):
        held = [i for i in range(num_blocks) if holders[i]]
        action = rng.choice(("take", "take", "share", "tree", "release", "release", "evict"))
        if action == "take" and pool.num_free:
            holders[pool.take()] = 1
        elif action in ("share", "tree", "release") and held:
            block = rng.choice(held)
            if action == "share":
                pool.share(block)
                holders[block] += 1
            elif action == "tree" and not in_tree[block]:
                pool.share_with_tree(block)
                in_tree[block] = True
            elif action == "release":
                pool.release(block)
                holders[block] -= 1
        elif action == "evict" and any(in_tree):
            block = rng.choice([i for i in range(num_blocks) if in_tree[i]])
            pool.release_from_tree(block)
            in_tree[block] = False
    states = [
        ("owned" if n == 1 else "shared") if n else "cached" if tree else "free"
        for n, tree in zip(holders, in_tree, strict=True)
    ]
    return pool, states


@pytest.mark.parametrize("seed", range(6))
def test_states_are_those_of_the_holders(seed: int) -> None:
    pool, expected = lived_in(97, seed)
    states = block_states(pool)
    assert [STATES[code] for code in states] == expected
    counts = state_counts(states)
    assert counts == {name: expected.count(name) for name in STATES}
    assert counts["free"] == pool.num_free
    assert counts["cached"] == pool.num_reclaimable
    assert state_map(states, 97) == ("".join(LETTER[state] for state in expected), 1)


def test_the_pools_of_these_tests_hold_all_states() -> None:
    assert {state for seed in range(6) for state in lived_in(97, seed)[1]} == set(STATES)


@pytest.mark.parametrize("max_cells", [1, 2, 10, 32, 96, 97, 98, 16384])
def test_a_cell_shows_its_commonest_state(max_cells: int) -> None:
    pool, expected = lived_in(97, 7)
    letters, size = state_map(block_states(pool), max_cells)
    assert len(letters) == -(-97 // size) <= max_cells
    assert size == 1 or -(-97 // (size - 1)) > max_cells, "no coarser than it must be"
    for number, letter in enumerate(letters):
        counts = Counter(LETTER[s] for s in expected[number * size : (number + 1) * size])
        assert counts[letter] == max(counts.values())


def test_pools_of_runs_and_a_hundred_thousand_blocks() -> None:
    runs = RunPool(8)
    runs.take_run(3)
    assert state_map(block_states(runs), 8) == ("ooofffff", 1)
    pool = BlockPool(100_000)
    for _ in range(40_000):
        pool.take()
    letters, size = state_map(block_states(pool), 4096)
    assert (len(letters), size) == (4000, 25)
    assert letters == "o" * 1600 + "f" * 2400
