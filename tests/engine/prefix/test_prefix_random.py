"""Random lives of the prefix tree against its plain model, and what its bookkeeping takes."""

from __future__ import annotations

import gc
import os
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix.drawn import Drawn
from engine.prefix.machine import Machine

#: `make test-prefix-soak` sets a million.
NUM_OPERATIONS = int(os.environ.get("HEADRACE_PREFIX_OPERATIONS", "20000"))
LIFE = 250 if NUM_OPERATIONS <= 20_000 else 2_500  # operations of one tree
CHECK_EVERY = 5 if NUM_OPERATIONS <= 20_000 else 50


@pytest.mark.timeout(3600)
def test_random_operations_keep_every_invariant_and_agree_with_the_plain_model() -> None:
    """Insert, match, fork, evict, pin, promise, clear, over all shapes of windows."""
    happened = dict.fromkeys(("hits", "partial hits", "short hits", "evictions"), 0)
    for seed in range(NUM_OPERATIONS // LIFE):
        machine = Machine(Random(seed), check_every=CHECK_EVERY)
        try:
            for _ in range(LIFE):
                machine.step()
            machine.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {machine.num_steps}, windows {machine.windows}")
            raise
        for name, number in machine.happened.items():
            happened[name] += number
    assert min(happened.values()) > NUM_OPERATIONS // 100, happened


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_short_lives(random: Random, length: int) -> None:
    """The same with the smallest example of a failure."""
    machine = Machine(random)
    for _ in range(length):
        machine.step()


@pytest.mark.parametrize("windows", [(None,), (None, 21)])
def test_the_size_that_is_reported_is_what_was_allocated(windows: tuple[int | None, ...]) -> None:
    random = Random(0)
    texts = [[random.randrange(60_000) for _ in range(64)] for _ in range(20)]
    drawn = Drawn(*windows, num_blocks=6_000)
    blocks = drawn.compute("x" * 64)
    gc.collect()
    tracemalloc.start()
    before = drawn.tree.num_bytes
    for i in range(300):
        tokens = [*texts[i % 20][: 4 * random.randrange(16)], i, *texts[(i + 1) % 20]]
        length = min(len(tokens), 64)
        drawn.tree.insert(tokens[:length], blocks, length, entry_from=length)
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    reported = drawn.tree.num_bytes - before
    assert drawn.tree.num_nodes > 300
    # The allocator rounds every object up, which tracemalloc does not see.
    assert 0.97 * allocated <= reported <= 1.25 * allocated
