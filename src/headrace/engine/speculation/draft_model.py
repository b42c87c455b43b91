"""DraftModel: a small model of the same vocabulary that guesses what the target will say next.

    asks ─▶ catch up, draw draft 1 ─▶ compute it, draw draft 2 ─▶ … ─▶ a Draft for each
            one ragged step of the draft model per arrow, all asks together, whatever their limits

It has an executor and KV pools of its own. A prompt is caught up on in pieces, a bounded number of
rows per call, so that a long one never makes others wait; drafting begins a few steps later.
Whatever goes wrong here costs drafts and nothing else. It knows no schedule and no acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.engine import sampler
from headrace.engine.blocks import BlockManager
from headrace.engine.config import EngineConfig
from headrace.engine.copies import make_copies
from headrace.engine.generation import Generation
from headrace.engine.prepare import Preparer
from headrace.engine.report import report
from headrace.engine.sampler import SamplerState, TokenMask
from headrace.engine.scheduler import Plan
from headrace.engine.scoring import Logits
from headrace.engine.speculation.draft_memory import DraftMemory
from headrace.engine.speculation.drafter import Ask, Distribution, Draft
from headrace.engine.speculation.follower import Follower, follower_of
from headrace.engine.speculation.guess import Guess
from headrace.engine.speculation.rejection import draw_drafts
from headrace.ops.executor import Executor

#: Catching up takes at most one part in so many of the prompt rows that a step of the engine has.
CATCH_UP_PART = 4

#: A draft token, −1 where there is none, and what it was drawn from where that is wanted.
_Drafted = tuple[int, Distribution | None]


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is drawn at a time: logits [n, V] and, for each row, the other three."""

    logits: Logits
    states: list[SamplerState]
    positions: list[int]
    all_masks: list[TokenMask | None]

    @property
    def masks(self) -> list[TokenMask | None] | None:
        """None where no row has one."""
        return self.all_masks if any(m is not None for m in self.all_masks) else None

    def some(self, rows: list[int]) -> _Rows:
        return _Rows(
            self.logits[rows],
            [self.states[row] for row in rows],
            [self.positions[row] for row in rows],
            [self.all_masks[row] for row in rows],
        )


class DraftModel:
    """A Drafter (drafter.py). executor: of the draft model; gets its KV memory here. config: the
    engine's limits, with the draft model's context and pools. num_ids: ids that both vocabularies
    have."""

    def __init__(self, executor: Executor, config: EngineConfig, num_ids: int) -> None:
        num_blocks, block_size = config.pools.num_blocks, config.block_size
        executor.allocate_kv(num_blocks, block_size, config.kv_format)
        manager = BlockManager(executor.kv_groups, num_blocks, block_size, config.max_model_len)
        self._executor = executor
        self._num_ids = num_ids
        self._max_rows = config.max_num_batched_tokens
        self._max_catch_up_rows = max(config.max_prefill_tokens // CATCH_UP_PART, 1)
        self._max_positions = config.max_model_len
        self.memory = DraftMemory(
            manager,
            config.max_model_len,
            self._max_catch_up_rows,
            num_ids,
            keeps=config.prefix_caching,
        )
        self._preparer = Preparer(
            num_groups=manager.num_groups,
            block_size=block_size,
            max_tokens=config.max_num_batched_tokens,
            max_seqs=config.max_num_seqs,
            max_columns=manager.max_columns,
        )
        self._debug = config.debug_invariants
        self._num_calls = 0
        self.num_caught_up = 0  # rows, ever

    # ---- Drafter ------------------------------------------------------------------------------

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Drafter."""
        self._num_calls += 1
        drafts = [Draft([]) for _ in asks]
        plan = self._plan(asks, drafts)
        while plan.sequences:
            try:
                plan = self._advance(plan)
            except BaseException as error:
                # The memory of those that took part may be half written.
                self.memory.manager.pending_copies.clear()
                for sequence in plan.sequences:
                    self._switch_off(follower_of(sequence), keep=False)
                self.memory.prefixes.clear()  # what it promised to others was not written
                if not isinstance(error, Exception):  # Ctrl-C
                    raise
                report("a step of the draft model failed; its samples go on without drafts")
                break
        if self._debug:
            self.memory.check()
        return drafts

    def kept(self, generation: Generation, num_kept: int) -> None:
        """See Drafter. The next call looks at the tokens themselves."""

    def forget(self, generation: Generation) -> None:
        """See Drafter."""
        self.memory.forget(generation)

    # ---- one call -----------------------------------------------------------------------------

    def _plan(self, asks: Sequence[Ask], drafts: list[Draft]) -> Plan:
        """The first step: what each sample lacks, or a part of it, on blocks for its drafts too.
        Those that lack little come first; among equals, older ones."""
        entries = []
        for ask, draft in zip(asks, drafts, strict=True):
            follower = self.memory.follower(ask.generation, self._num_calls)
            if not follower.off:
                entries.append((follower, ask, draft))
        entries.sort(key=lambda entry: (entry[0].is_behind, entry[0].sequence.place))
        plan = Plan()
        left, left_behind = self._max_rows, self._max_catch_up_rows
        for index, (follower, ask, draft) in enumerate(entries):
            self.memory.catch_up(follower)
            missing, is_behind = follower.num_missing, follower.is_behind
            rows = min(missing, left, left_behind if is_behind else left)
            if rows == 0 or (is_behind and not follower.can_pay):
                continue
            room = self._max_positions - follower.sequence.num_tokens + 1
            limit = min(ask.limit, room) if rows == missing else 0
            limit = self.memory.extend(follower, rows, limit, [e[0] for e in entries[index + 1 :]])
            if limit < 0 or (limit and not self._begin(follower, ask, limit, draft)):
                continue
            left -= rows
            if is_behind:
                left_behind -= rows
                self.num_caught_up += rows
            plan.sequences.append(follower.sequence)
            plan.num_new_tokens.append(rows)
        return plan

    def _begin(self, follower: Follower, ask: Ask, limit: int, draft: Draft) -> bool:
        try:
            follower.guess = Guess(ask, follower.sequence, limit, draft)
        except Exception:  # of the constraint
            self._switch_off(follower)
        return not follower.off

    def _advance(self, plan: Plan) -> Plan:
        """Runs a step; the next one, of all that want another draft."""
        batch, drawing = self._preparer.build(plan, [])
        make_copies(self.memory.manager, self._executor)
        logits = self._executor.run(batch)
        self.memory.prefixes.settle()
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            sequence.num_computed_tokens += count
            computed = sequence.num_computed_tokens
            sequence.num_stored_tokens = max(sequence.num_stored_tokens, computed)
        drawers = [follower_of(sequence) for sequence in drawing]
        return self._draw(drawers, logits) if drawers else Plan()

    def _draw(self, drawing: list[Follower], logits: Logits) -> Plan:
        """A draft token for every row; who wants another one computes it next."""
        plan = Plan()
        guesses = [guess for follower in drawing if (guess := follower.guess) is not None]
        assert len(guesses) == len(drawing), "a row without a guess"
        rows = _Rows(
            logits,
            [guess.state for guess in guesses],
            [follower.sequence.num_tokens for follower in drawing],
            [self._mask(follower) for follower in drawing],
        )
        kinds = [guess.wants_distribution for guess in guesses]
        for kind, draw in ((False, self._draw_coupled), (True, self._draw_by_itself)):
            chosen = [row for row, wants in enumerate(kinds) if wants is kind]
            if not chosen:
                continue
            some = rows if len(chosen) == len(drawing) else rows.some(chosen)
            drawn = draw(some)
            if any(guesses[row].least_chance for row in chosen):
                self._weigh([guesses[row] for row in chosen], some.logits)
            for row, (token, drawn_from) in zip(chosen, drawn, strict=True):
                if self._accept(drawing[row], token, drawn_from):
                    plan.sequences.append(drawing[row].sequence)
                    plan.num_new_tokens.append(1)
        return plan

    def _weigh(self, guesses: list[Guess], logits: Logits) -> None:
        """How sure the draft model is of a row, whatever was drawn from it: the probability of its
        likeliest token."""
        scores = sampler.token_logprobs(
            logits, [0] * len(guesses), 1, self._num_ids, self._executor.pool
        )
        for guess, score in zip(guesses, scores, strict=True):
            if score is not None:
                guess.chance *= math.exp(score.top[0][1])

    def _draw_coupled(self, rows: _Rows) -> list[_Drafted]:
        """With the noise that the target's draws will have."""
        draws = sampler.draw(
            rows.logits, rows.states, rows.positions, self._num_ids, self._executor.pool, rows.masks
        )
        return [(drawn if isinstance(drawn, int) else drawn.token, None) for drawn in draws]

    def _draw_by_itself(self, rows: _Rows) -> list[_Drafted]:
        """With noise of the drafts' own, and what was drawn from."""
        draws = draw_drafts(
            rows.logits, rows.states, rows.positions, self._num_ids, self._executor.pool, rows.masks
        )
        return [(-1, None) if drawn is None else drawn for drawn in draws]

    def _mask(self, follower: Follower) -> TokenMask | None:
        """Of the row that is drawn next; a constraint that fails ends its sample's drafting."""
        assert follower.guess is not None
        try:
            return follower.guess.mask()
        except Exception:
            self._switch_off(follower)
            return None

    def _accept(self, follower: Follower, token: int, drawn_from: Distribution | None) -> bool:
        """Adds a draft; whether its sample wants another one. token < 0: logits that are not
        finite, or every candidate banned."""
        guess = follower.guess
        if guess is None:
            return False
        try:
            goes_on = token >= 0 and guess.accept(token, drawn_from)
        except Exception:  # of the constraint
            self._switch_off(follower)
            return False
        if token < 0:
            self._switch_off(follower)
        if not goes_on:
            follower.guess = None
        return goes_on

    def _switch_off(self, follower: Follower, *, keep: bool = True) -> None:
        """No more drafts for this sample. keep: see DraftMemory.release."""
        follower.off, follower.guess = True, None
        self.memory.release(follower, keep=keep)
