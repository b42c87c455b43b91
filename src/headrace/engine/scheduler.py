"""Scheduler: which sequences compute how many tokens in the next step, on which blocks.

Deterministic bookkeeping over sequences and block counts: no clock, no tensors, no token values, no
text; so the simulator can drive the very same code. One call of `schedule` decides one step:

1. Tokens. Sequences that want one token (decodes) come first, so that a long prompt never stalls
   them; then the others share what is left of the token budget, oldest first (chunked prefill).
   Drafts of decodes take up to half of what is left, more where nobody else wants it, and
   only blocks that are free anyway or cached.
2. Blocks, oldest first. When there are none left: cached prefixes that nobody uses go first, then
   the blocks of paused sequences, then the newest running sequence is preempted (its blocks given
   up, recomputed later as far as the cache could not keep them). An older sequence is never
   preempted for a newer one and a request that cannot fit alone was refused at the door, so the
   oldest always advances: no livelock.
3. Admission from the head of the waiting queue (first come, first served), unless something was
   just preempted. With others running, a newcomer must fit with all tokens it has today, beside
   what the running ones still need for theirs: this keeps preemption rare.

Static batching is a rule of admission: a new batch enters only when the last one is completely
done (or paused).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headrace.engine.blocks import BlockManager
from headrace.engine.prefix.reuse import PrefixReuse
from headrace.engine.queues import Queues
from headrace.engine.request import Sequence, Status
from headrace.engine.sizing import fair_cap, peak_blocks


class Batching(Enum):
    CONTINUOUS = "continuous"
    STATIC = "static"


class Policy(Enum):
    """Which waiting sequence is admitted next."""

    FCFS = "fcfs"  # the oldest
    LPM = "lpm"  # the longest prefix match: the one with most positions in the prefix cache


#: LPM looks at so many waiting sequences, and lets none be overtaken more often than that.
LPM_CANDIDATES = 16
LPM_PATIENCE = 16


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of one step. max_prefill_tokens: most tokens of all non-decoding sequences together.
    max_logit_rows: most rows to draw from; no fewer than max_num_seqs.

    whole_history: the no_cache path; a step computes a sequence from position 0 or not at all.
    policy: who of those that wait is admitted first.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_tokens: int
    batching: Batching = Batching.CONTINUOUS
    whole_history: bool = False
    max_logit_rows: int = 1 << 20
    policy: Policy = Policy.FCFS


@dataclass(slots=True)
class Plan:
    """One step. sequences[i] computes its next num_new_tokens[i] tokens, its drafts included; its
    blocks hold them. admitted, preempted: moved into and out of the running set by this call.
    reclaimed: lost their blocks while they did not run. num_draft_tokens: of all tokens, those that
    are guesses; num_verify_tokens: all tokens of the sequences with guesses."""

    sequences: list[Sequence] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    reclaimed: list[Sequence] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_verify_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(self.num_new_tokens)


class Scheduler(Queues):
    """The queues, and who of them computes what in the next step."""

    def __init__(self, budget: StepBudget, manager: BlockManager, prefixes: PrefixReuse) -> None:
        assert budget.max_num_batched_tokens >= budget.max_num_seqs
        super().__init__(manager, prefixes, keeps_blocks=not budget.whole_history)
        self.budget = budget

    def can_ever_fit(self, num_positions: int) -> bool:
        """Whether one sequence alone can hold num_positions, computing a token at a time."""
        return all(
            self._peak(group, num_positions, 1) <= pool.num_blocks
            for group, pool in enumerate(self.manager.pools)
        )

    def schedule(self, num_drafts: int = 0) -> Plan:
        """Decides the next step; allocates its blocks. See the module's text. num_drafts: of all
        running sequences together."""
        plan = Plan()
        room = self._draft_room(num_drafts) if num_drafts else 0
        self._serve_running(plan, room)
        if num_drafts:
            self._serve_drafts(plan, room)
        if not plan.preempted and self.waiting:
            self._admit(plan)
        assert plan.sequences or not self.has_work, "nothing advances"
        return plan

    # ---- running sequences ------------------------------------------------------------------

    def _serve_running(self, plan: Plan, num_drafts: int) -> None:
        running = self.running
        wants = [len(s.tokens) - s.num_computed_tokens for s in running]
        shares = wants if self._is_plain(wants) else self._share_tokens(wants, num_drafts)
        index = 0
        while index < len(running):
            sequence = running[index]
            want, blocks = shares[index], sequence.blocks
            assert blocks is not None
            if want == 1 and sequence.num_computed_tokens < blocks.num_writable:
                plan.sequences.append(sequence)
                plan.num_new_tokens.append(1)
            elif want and not self._serve(sequence, want, plan):
                return
            index += 1

    def _is_plain(self, wants: list[int]) -> bool:
        """Whether everybody wants one token, so that there is nothing to share out."""
        return wants.count(1) == len(wants) and not self.budget.whole_history

    def _serve(self, sequence: Sequence, want: int, plan: Plan) -> bool:
        """Gives a sequence blocks for its next tokens, at the cost of younger ones if need be.
        False: nobody after it can be served in this step."""
        if want > 1:
            self.prefixes.catch_up(sequence)
            want = min(want, sequence.num_wanted)
        granted = self._grant(sequence, want)
        while not granted and sequence.status is Status.RUNNING:
            if self.budget.whole_history:
                return False  # nobody holds blocks between steps: the others wait for the next
            if not self._reclaim(plan, sequence):
                self._take_from_the_newest(plan)
            if sequence.status is Status.RUNNING:
                granted = self._grant(sequence, want)
        if granted:
            plan.sequences.append(sequence)
            plan.num_new_tokens.append(granted)
        return True

    def _share_tokens(self, wants: list[int], num_drafts: int) -> list[int]:
        """Tokens of the step for each running sequence, in order of age; see point 1 above.
        num_drafts: tokens that are spoken for."""
        left = self.budget.max_num_batched_tokens - num_drafts
        left_prefill = self.budget.max_prefill_tokens
        if not self.budget.whole_history:
            left -= wants.count(1)
        shares = []
        for want in wants:
            if self.budget.whole_history:
                share = want if want <= left else 0
                left -= share
            elif want == 1:
                share = 1
            else:
                share = min(want, left, left_prefill)
                left -= share
                left_prefill -= share
            shares.append(share)
        return shares

    def _grant(self, sequence: Sequence, want: int) -> int:
        """Gives a sequence blocks for its next n ≤ want tokens; n, or 0 when it cannot advance."""
        blocks = sequence.blocks
        assert blocks is not None
        start = sequence.num_computed_tokens
        stored = max(sequence.num_stored_tokens - start, 0)  # rows that are computed, not written
        if want <= stored:
            return want
        self.prefixes.make_room(blocks, start + stored, want - stored)
        granted = stored + self.manager.fit(blocks, start + stored, want - stored)
        if self.budget.whole_history and granted < want:
            return 0
        self.manager.extend(blocks, start + stored, granted - stored)
        self.prefixes.granted(sequence, start, start + granted)
        return granted

    def _draft_room(self, num_drafts: int) -> int:
        """Tokens of the step for drafts: what the others leave, and half of what is left beside
        one token for everybody if they would leave less. So neither stalls the other."""
        budget = self.budget
        wants = [s.num_wanted for s in self.running]
        left = budget.max_num_batched_tokens - wants.count(1)
        prefill = budget.max_prefill_tokens
        if not self.waiting:
            prefill = min(prefill, sum(want for want in wants if want > 1))
        room = max(left // 2, left - prefill)
        return max(min(num_drafts, room, budget.max_logit_rows - len(wants)), 0)

    def _serve_drafts(self, plan: Plan, room: int) -> None:
        """Lets sequences compute drafts behind their newest token where blocks are free, and cuts
        the rest. When somebody was just preempted for want of blocks, nobody gets any."""
        drafting = [(i, s) for i, s in enumerate(plan.sequences) if s.drafts]
        cap = 0 if plan.preempted else fair_cap([len(s.drafts) for _, s in drafting], room)
        for index, sequence in drafting:
            blocks = sequence.blocks
            assert blocks is not None
            start = sequence.num_computed_tokens + 1
            want = min(len(sequence.drafts), cap)
            self.prefixes.make_room(blocks, start, want)
            granted = self.manager.fit(blocks, start, want)
            self.manager.extend(blocks, start, granted)
            del sequence.drafts[granted:]
            if granted:
                plan.num_new_tokens[index] += granted
                plan.num_draft_tokens += granted
                plan.num_verify_tokens += 1 + granted

    def _reclaim(self, plan: Plan, wanting: Sequence) -> bool:
        """Takes the blocks of a sequence that no step needs, for `wanting`; what is cached has gone
        before. False: there is none."""
        victim = self._reclaim_parked(wanting)
        if victim is not None:
            plan.reclaimed.append(victim)
        return victim is not None

    def _take_from_the_newest(self, plan: Plan) -> None:
        """Preempts the newest running sequence; where one runs alone, the cache has to give way."""
        if len(self.running) == 1:
            gave = self.prefixes.give_way()
            assert gave, "a sequence alone does not fit: refuse it at the door"
            return
        victim = self.running.pop()
        self._lose_blocks(victim)
        self.add(victim)
        plan.preempted.append(victim)

    def take_back(self, plan: Plan) -> None:
        """Undoes the admission of those that the plan gave nothing to do: their blocks may be
        others' that were to be written by the step, and the step failed."""
        for sequence in plan.admitted:
            if sequence not in plan.sequences and sequence.status is Status.RUNNING:
                self.running.remove(sequence)
                self._free(sequence)
                self.add(sequence)

    # ---- waiting sequences ------------------------------------------------------------------

    def _admit(self, plan: Plan) -> None:
        budget = self.budget
        static = budget.batching is Batching.STATIC
        if static and self.running:
            return
        left = budget.max_num_batched_tokens - plan.num_tokens
        left_prefill = budget.max_prefill_tokens + plan.num_verify_tokens
        left_prefill -= sum(n for n in plan.num_new_tokens if n > 1)
        slots = budget.max_num_seqs - sum(s.num_slots for s in self.running)
        while self.waiting and (left > 0 or static):
            number = self._choose_waiting()
            sequence = self.waiting[number]
            if sequence.num_slots > slots:
                break
            is_parked = sequence.blocks is not None
            if not self._open(sequence, plan):
                break
            want = sequence.num_wanted
            if budget.whole_history:
                share = want if want <= left else 0
            else:
                share = min(want, left) if want == 1 else min(want, left, left_prefill)
            granted = self._grant_admitted(sequence, share, plan) if share else 0
            if granted == 0 and not (static and share == 0):
                if not is_parked:
                    self._free(sequence)
                break
            for overtaken in self.waiting[:number]:
                overtaken.num_overtaken += 1
            self.waiting.pop(number)
            if is_parked:
                self.parked.remove(sequence)
            self.add_running(sequence)
            plan.admitted.append(sequence)
            slots -= sequence.num_slots
            if granted:
                plan.sequences.append(sequence)
                plan.num_new_tokens.append(granted)
                left -= granted
                left_prefill -= granted if granted > 1 else 0

    def _choose_waiting(self) -> int:
        """Index of the waiting sequence to admit next."""
        waiting = self.waiting
        head = waiting[0]
        if self.budget.policy is Policy.FCFS or head.num_overtaken >= LPM_PATIENCE:
            return 0
        if head.num_preemptions:  # it has begun
            return 0
        level = head.place[0] - head.order[0]  # only among equal priorities
        best, longest = 0, self.prefixes.cached_length(head)
        for number, other in enumerate(waiting[1:LPM_CANDIDATES], start=1):
            if other.place[0] - other.order[0] == level:
                length = self.prefixes.cached_length(other)
                if length > longest:
                    best, longest = number, length
        return best

    def _grant_admitted(self, sequence: Sequence, share: int, plan: Plan) -> int:
        """_grant for a newcomer: the cached and the paused make way, running sequences never do."""
        granted = self._grant(sequence, share)
        while granted == 0 and (
            self._reclaim(plan, sequence) or (not self.running and self.prefixes.give_way())
        ):
            granted = self._grant(sequence, share)
        return granted

    def _open(self, sequence: Sequence, plan: Plan) -> bool:
        """Gives a newcomer its tables, with a cached prefix if there is one; one that was resumed
        may have its own still. False = no room now."""
        is_parked = sequence.blocks is not None
        if not is_parked:
            self.prefixes.attach(sequence)
        while sequence.blocks is None:
            sequence.blocks = self.manager.open(sequence.max_num_positions)
            if sequence.blocks is None and not self._reclaim(plan, sequence):
                return False
        if self.running and not self.budget.whole_history:
            while not self._has_room_for(sequence):
                if not self._reclaim(plan, sequence):
                    if not is_parked:
                        self._free(sequence)
                    return False
        return True

    def _has_room_for(self, sequence: Sequence) -> bool:
        """Whether the newcomer's tokens of today fit beside what the running ones still need."""
        for group, pool in enumerate(self.manager.pools):
            need = self._missing(sequence, group)
            need += sum(self._missing(other, group) for other in self.running)
            if need > pool.num_free + pool.num_reclaimable:
                return False
        return True

    def _missing(self, sequence: Sequence, group: int) -> int:
        """Blocks that a sequence still has to take to compute the tokens it has today."""
        assert sequence.blocks is not None
        held = sequence.blocks.num_columns[group] - sequence.blocks.first_columns[group]
        if sequence.num_stored_tokens % self.manager.block_size > 0 == sequence.blocks.num_writable:
            held -= 1  # the last one is shared: what follows goes into a copy of it
        peak = self._peak(group, sequence.num_tokens, self.budget.max_prefill_tokens)
        return max(peak - held, 0)

    def _peak(self, group: int, num_positions: int, chunk: int) -> int:
        manager = self.manager
        window = manager.windows[group]
        return peak_blocks(window, num_positions, chunk, manager.block_size, frees_window=True)
