"""What must hold between any two steps. Property tests check it after every step, and so does an
engine with HEADRACE_DEBUG_INVARIANTS=1."""

from __future__ import annotations

from headrace.engine.request import Sequence, Status
from headrace.engine.scheduler import Scheduler


def check_invariants(scheduler: Scheduler) -> None:
    """Raises AssertionError when block counts, queues or sequences disagree."""
    running, waiting, paused = scheduler.running, scheduler.waiting, scheduler.paused
    for queue, status in (
        (running, Status.RUNNING),
        (waiting, Status.WAITING),
        (paused, Status.PAUSED),
    ):
        assert all(s.status is status for s in queue), "status differs from queue"
        places = [s.place for s in queue]
        assert places == sorted(set(places)), "queue is not in order of age"
    parked = sorted((s for s in (*waiting, *paused) if s.blocks), key=lambda s: s.place)
    assert scheduler.parked == parked, "parked are those that hold blocks and do not run"
    held = [s.blocks for s in (*running, *parked) if s.blocks is not None]
    assert len(held) == len(running) + len(parked), "a running sequence has no tables"
    assert sum(s.num_slots for s in running) <= scheduler.budget.max_num_seqs, "too many run"
    scheduler.manager.check([*held, *scheduler.prefixes.holders()])
    if scheduler.prefixes.tree is not None:
        scheduler.prefixes.tree.check()
    for sequence in (*running, *parked):
        _check_sequence(sequence, scheduler)


def _check_sequence(sequence: Sequence, scheduler: Scheduler) -> None:
    assert sequence.blocks is not None
    assert sequence.num_computed_tokens < sequence.num_tokens <= sequence.max_num_tokens
    assert sequence.num_computed_tokens <= sequence.num_stored_tokens
    manager = scheduler.manager
    for columns in sequence.blocks.num_columns:
        held = columns * manager.block_size
        assert held >= sequence.num_computed_tokens, "computed beyond the blocks"
        assert held >= sequence.blocks.num_writable, "writable beyond the blocks"
    first = sequence.num_computed_tokens // manager.block_size
    for pool, table in zip(manager.pools, sequence.blocks.tables, strict=True):
        writable = table[first : sequence.blocks.num_writable // manager.block_size]
        assert all(pool.ref_counts[b] == 1 for b in writable.tolist()), "writable, but shared"
