"""The scheduler alone: exact token counts and blocks, no engine and no model."""

from __future__ import annotations

from toy import FULL, window_group

from headrace.engine.blocks import BlockManager
from headrace.engine.prefix.reuse import PrefixReuse
from headrace.engine.prefix.tree import PrefixTree
from headrace.engine.prepare import Preparer
from headrace.engine.request import Sequence, Status
from headrace.engine.scheduler import (
    Batching,
    Plan,
    Policy,
    Scheduler,
    StepBudget,
)


class Bench:
    """A scheduler whose steps are committed by hand: every complete sequence draws token 0."""

    def __init__(
        self,
        num_blocks: int = 100,
        *,
        seqs: int = 4,
        budget: int = 16,
        prefill: int | None = None,
        batching: Batching = Batching.CONTINUOUS,
        window: int | None = None,
        caching: bool = False,
        policy: Policy = Policy.FCFS,
    ) -> None:
        groups = [FULL] if window is None else [FULL, window_group(window)]
        self.manager = BlockManager(groups, [num_blocks] * len(groups), 4, 64)
        self.prefixes = PrefixReuse(self.manager, PrefixTree(self.manager) if caching else None)
        limits = StepBudget(seqs, budget, prefill or budget, batching, policy=policy)
        self.scheduler = Scheduler(limits, self.manager, self.prefixes)
        self.num = 0

    def add(self, length: int, *, first: int = 0, slots: int = 1) -> Sequence:
        ids = list(range(first, first + length))
        sequence = Sequence((self.num, 0), ids, 60, salt="", num_slots=slots)
        self.num += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[tuple[int, int]]:
        """One step: (arrival, tokens) of each sequence in it."""
        plan = self.plan()
        return [(s.order[0], n) for s, n in zip(plan.sequences, plan.num_new_tokens, strict=True)]

    def plan(self) -> Plan:
        plan = self.scheduler.schedule()
        self.prefixes.settle()
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            sequence.num_computed_tokens += count
            sequence.num_stored_tokens = max(
                sequence.num_stored_tokens, sequence.num_computed_tokens
            )
            assert sequence.blocks is not None
            self.manager.trim(sequence.blocks, sequence.num_computed_tokens)
            if sequence.num_wanted == 0:
                sequence.tokens.append(0)
        self.manager.take_copies()
        return plan

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence as the engine does."""
        self.prefixes.keep(sequence)
        self.scheduler.remove(sequence)


def test_a_long_prompt_is_cut_and_decodes_keep_going() -> None:
    bench = Bench(budget=16)
    bench.add(3)
    assert bench.step() == [(0, 3)]
    bench.add(40)
    assert bench.step() == [(0, 1), (1, 15)]
    bench.add(5)
    assert bench.step() == [(0, 1), (1, 15)]  # the budget is spent: 2 waits
    assert bench.step() == [(0, 1), (1, 10), (2, 5)]
    assert bench.step() == [(0, 1), (1, 1), (2, 1)]


def test_prefill_has_its_own_limit() -> None:
    bench = Bench(budget=16, prefill=4)
    bench.add(3)
    bench.step()
    bench.add(10)
    bench.add(10)
    assert bench.step() == [(0, 1), (1, 4)]
    assert bench.step() == [(0, 1), (1, 4)]
    assert bench.step() == [(0, 1), (1, 2), (2, 2)]


def test_an_older_prefill_does_not_starve_a_newer_decode() -> None:
    bench = Bench(budget=4)
    old = bench.add(30)
    bench.step()
    new = bench.add(1)
    new.tokens = [1]
    bench.scheduler.waiting.remove(new)
    new.blocks = bench.manager.open(60)
    bench.scheduler.add_running(new)
    assert bench.step() == [(0, 3), (1, 1)]
    assert old.num_computed_tokens == 7


def test_no_more_sequences_than_places_and_forks_count_ahead() -> None:
    bench = Bench(seqs=4)
    bench.add(2, slots=3)
    bench.add(2)
    bench.add(2)
    assert bench.step() == [(0, 2), (1, 2)]


def test_the_newest_is_preempted_and_comes_back_first() -> None:
    bench = Bench(num_blocks=4, budget=16, seqs=3)
    first, second = bench.add(7), bench.add(7)
    assert bench.step() == [(0, 7), (1, 7)]
    assert bench.step() == [(0, 1), (1, 1)]  # both now have 8 positions: all four blocks are full
    third = bench.add(1)
    plan = bench.plan()
    assert plan.preempted == [second]
    assert plan.sequences == [first]
    assert (second.status, second.num_computed_tokens, second.blocks) == (Status.WAITING, 0, None)
    assert second.num_preemptions == 1
    assert bench.scheduler.waiting == [second, third]
    assert first.blocks is not None
    assert first.blocks.held(0)[:2] == [0, 1]


def test_a_newcomer_waits_until_its_whole_prompt_fits_beside_the_others() -> None:
    bench = Bench(num_blocks=8, budget=8)
    bench.add(20)  # 5 blocks, 2 of them taken in the first step
    bench.add(16)  # 4 blocks: more than the 3 that are not spoken for
    assert bench.step() == [(0, 8)]
    assert bench.step() == [(0, 8)]
    assert bench.step() == [(0, 4)]
    bench.add(1)
    assert bench.step() == [(0, 1)]  # first come, first served: 2 does not overtake 1


def test_static_batching_lets_nobody_in_before_the_batch_is_done() -> None:
    bench = Bench(budget=8, seqs=2, batching=Batching.STATIC)
    a, b = bench.add(6), bench.add(6)
    bench.add(2)
    assert bench.step() == [(0, 6), (1, 2)]
    assert bench.step() == [(0, 1), (1, 4)]
    bench.scheduler.remove(a)
    assert bench.step() == [(1, 1)]  # a place is free, and stays free
    bench.scheduler.remove(b)
    assert bench.step() == [(2, 2)]


def test_static_batching_admits_the_whole_batch_at_once() -> None:
    bench = Bench(budget=8, seqs=2, batching=Batching.STATIC)
    bench.add(12)
    bench.add(12)
    assert bench.step() == [(0, 8)]
    assert len(bench.scheduler.running) == 2
    assert bench.step() == [(0, 4), (1, 4)]


def test_one_sequence_may_use_a_window_pool_smaller_than_its_chunk() -> None:
    bench = Bench(num_blocks=16, budget=64, window=9)
    bench.manager.pools[1].num_blocks = 4
    sequence = bench.add(50)
    steps = []
    while sequence.num_computed_tokens < 50:
        steps += [n for _, n in bench.step()]
    assert sum(steps) == 50
    assert steps[0] == 16  # four blocks of four
    assert bench.scheduler.can_ever_fit(60)
    bench.manager.pools[1].num_blocks = 2
    assert not bench.scheduler.can_ever_fit(60)


def test_a_cached_prefix_is_shared_then_copied_and_evicted_before_anyone_is_preempted() -> None:
    bench = Bench(num_blocks=6, caching=True)
    turn = bench.add(6)
    bench.step()
    bench.end(turn)
    assert bench.manager.free_counts == (4,)

    following = bench.add(9)  # 0 … 8, and 0 … 5 are cached
    assert bench.step() == [(0 + 1, 3)]
    assert following.num_cached_tokens == 6
    assert following.blocks is not None
    assert following.blocks.held(0) == [0, 2, 3]  # block 1 was partly filled: copied to 2
    bench.manager.check([following.blocks])
    assert bench.prefixes.tree is not None

    while following.num_computed_tokens < 22:  # 6 blocks: everything but what it shares has gone
        bench.step()
    assert bench.manager.free_counts == (0,)
    bench.manager.check([following.blocks])
    assert following.status is Status.RUNNING
    assert following.num_preemptions == 0


def test_when_the_whole_prompt_is_cached_its_last_row_is_computed_but_not_written() -> None:
    bench = Bench(caching=True)
    turn = bench.add(6)
    bench.step()
    bench.end(turn)
    again = bench.add(6)
    plan = bench.scheduler.schedule()
    assert plan.num_new_tokens == [1]
    assert again.num_cached_tokens == 5
    preparer = Preparer(num_groups=1, block_size=4, max_tokens=16, max_seqs=4, max_columns=16)
    batch, drawing = preparer.build(plan, [])
    assert drawing == [again]
    assert batch.tokens.tolist() == [5]
    assert batch.positions.tolist() == [[5]]
    assert batch.groups[0].slots.tolist() == [-1]
    assert batch.groups[0].block_tables[0, :3].tolist() == [0, 1, -1]
    assert bench.manager.take_copies() == []
    again.num_computed_tokens = again.num_stored_tokens = 6
    again.tokens.append(9)
    plan = bench.scheduler.schedule()
    assert bench.manager.take_copies() == [(0, 1, 2)]
    batch, _ = preparer.build(plan, [])
    assert batch.groups[0].slots.tolist() == [2 * 4 + 2]


def test_a_ragged_batch_by_hand() -> None:
    bench = Bench(window=5)
    bench.add(6)
    bench.step()
    bench.add(3)
    plan = bench.scheduler.schedule()
    preparer = Preparer(num_groups=2, block_size=4, max_tokens=16, max_seqs=4, max_columns=16)
    batch, drawing = preparer.build(plan, [2])
    assert batch.tokens.tolist() == [0, 0, 1, 2]
    assert batch.positions.tolist() == [[6, 0, 1, 2]]
    assert batch.spans.tolist() == [0, 1, 4]
    assert batch.context_lens.tolist() == [7, 3]
    assert batch.logit_rows.tolist() == [0, 3]
    assert batch.prompt_rows.tolist() == [2]
    assert [s.order[0] for s in drawing] == [0, 1]
    full, window = batch.groups
    assert full.slots.tolist() == [6, 8, 9, 10]
    assert window.first_pos.tolist() == [0, 0]
    assert full.block_tables[:, :2].tolist() == [[0, 1], [2, -1]]


def test_a_resumed_sequence_waits_for_room_with_its_blocks() -> None:
    bench = Bench(num_blocks=10, seqs=2)
    old, young = bench.add(17), bench.add(20)  # 5 blocks each: that is all
    for _ in range(3):
        bench.step()
    assert (old.num_computed_tokens, young.num_computed_tokens) == (18, 20)
    held = young.blocks
    bench.scheduler.pause(young)
    bench.scheduler.resume(young)
    for _ in range(2):  # its 21st token needs a 6th block; old goes on in its own
        assert bench.step() == [(0, 1)]
        assert bench.scheduler.waiting == bench.scheduler.parked == [young]
        assert young.blocks is held
        assert young.num_computed_tokens == 20
    assert bench.step() == [(0, 1)]  # old's 6th block is one of young's, who does not run
    assert bench.scheduler.running == [old]
    assert young.blocks is None
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)


def test_paused_blocks_go_before_those_of_the_resumed_and_the_newest_first() -> None:
    bench = Bench(num_blocks=20, seqs=4)
    sequences = [bench.add(12) for _ in range(4)]  # 3 blocks each, then 4
    while sequences[3].num_computed_tokens < 12:
        bench.step()
    first, second, third, fourth = sequences
    for sequence in (second, third, fourth):
        bench.scheduler.pause(sequence)
    bench.scheduler.resume(fourth)
    plan = Plan()
    lost = []
    while bench.scheduler._reclaim(plan, first):
        lost.append(plan.reclaimed[-1])
    assert lost == [third, second, fourth]
    assert all(s.num_preemptions == 1 and s.blocks is None for s in lost)
    assert first.blocks is not None
