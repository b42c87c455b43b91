"""Lives of engines with everything on at once: prefixes of several salts, pins that end, break and
are released, saves between steps, a draft model or n-grams, constraints, pauses, aborts, and steps
that fail on both models, half written.

As in test_engine_property.py every text is the oracle's. Besides, after every step: who listens to
events knows what can be found, the tree's blocks hold its tokens, nothing is promised any more and
no draft is left.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain as joined
from pathlib import Path

import pytest
from speculation.drafters import AnyDrafter
from speculation.test_draft_model import Alternating, Worse
from toy import FULL, VOCAB, ToyModel, expected_tokens, make_engine, run_all, window_group

from engine.prefix.saved_toy import assert_sound
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.outputs import Delta
from headrace.engine.params import SamplingParams
from headrace.engine.prefix.events import BlockRemoved, BlockStored, CacheEvent, chain
from headrace.engine.prefix.saved import SavedPrefixes
from headrace.engine.prefix.saved_write import PrefixSave
from headrace.engine.request import FinishReason
from headrace.engine.scheduler import Batching, Policy
from headrace.engine.sizing import PoolPlan, peak_blocks
from headrace.engine.speculation.choice import Acceptance, Choice, Speculative
from headrace.engine.speculation.draft_model import DraftModel
from headrace.errors import CapacityError, PinsFullError, UsageError
from headrace.ops.batch import Batch
from headrace.ops.kv import KVGroupSpec

#: `make test-prefix-soak` asks for more.
NUM_LIVES = int(os.environ.get("HEADRACE_SOAK_LIVES", "40"))
LENGTH = 64  # of the context
B = 4  # as in saved_toy
SHAPES: list[tuple[KVGroupSpec, ...]] = [
    (FULL,),
    (window_group(),),
    (FULL, window_group(5), window_group(17)),
    (FULL, replace(FULL, name="another"), window_group(2)),
]


class Crumbling(ToyModel):
    """A step that fails leaves garbage where it was to write."""

    def run(self, batch: Batch):  # type: ignore[no-untyped-def]
        if self.fail_next is not None:
            for memory, group in zip(self.memory, batch.groups, strict=True):
                memory[group.slots[group.slots >= 0]] = 0
        return super().run(batch)


class CrumblingWorse(Worse, Crumbling):
    """The draft model, too."""


class Listener:
    """Knows of the tree what it is told."""

    def __init__(self) -> None:
        self.found: set[bytes] = set()

    def __call__(self, event: CacheEvent) -> None:
        if isinstance(event, BlockStored):
            assert event.parent_hash is None or event.parent_hash in self.found
            assert self.found.isdisjoint(event.block_hashes)
            self.found.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            assert self.found.issuperset(event.block_hashes)
            self.found.difference_update(event.block_hashes)
        else:
            self.found.clear()


class Life:
    """One engine, from its start to its end. counts: what happened, so that a test can tell."""

    def __init__(self, seed: int, directory: Path, counts: Counter[str]) -> None:
        self.pick = random.Random(seed)
        self.counts = counts
        self.directory = directory
        self.stem = self.pick.choices(range(VOCAB), k=LENGTH)
        self.requests: list[tuple[Request, int | None]] = []  # and how long its constraint is
        self.deltas: list[Delta] = []
        self.pins: list[str] = []
        self.saving: tuple[SavedPrefixes, PrefixSave] | None = None
        self.engine = self.make_engine(self.pick.choice(SHAPES))

    def make_engine(self, groups: tuple[KVGroupSpec, ...]) -> Engine:
        pick = self.pick
        slack = pick.choice([0, 1, 8, 40])
        least = [peak_blocks(g.window, LENGTH, 1, B, frees_window=True) for g in groups]
        self.model = Crumbling(groups, bad_token=pick.choice([None, None, 17]))
        self.draft_model = CrumblingWorse(groups, bad_token=pick.choice([None, 23]))
        drafter: DraftModel | AnyDrafter = AnyDrafter(self.model, pick.randrange(99))
        if pick.random() < 0.7:
            shortest = pick.choice([LENGTH, 20])
            config = replace(
                make_engine(ToyModel(groups), budget=16).config,
                max_model_len=shortest,
                pools=PoolPlan(tuple(n + pick.choice([0, 9]) for n in least), (1,) * len(groups)),
                prefix_caching=True,
            )
            drafter = DraftModel(self.draft_model, config, VOCAB)
        self.drafter = drafter
        self.listener = Listener()
        engine = make_engine(
            self.model,
            max_model_len=LENGTH,
            max_num_seqs=3,
            budget=pick.choice([4, 17, 64]),
            block_size=B,
            num_blocks=[n + slack for n in least],
            eos_ids=frozenset(pick.choice([[], [7]])),
            prefix_caching=True,
            schedule_policy=pick.choice(list(Policy)),
            batching=pick.choice([*Batching, Batching.CONTINUOUS]),
            speculation=Choice(
                pick.choice([Speculative.NGRAM, Speculative.DRAFT]), pick.choice([None, 1, 7, 64])
            ),
            draft=drafter,
        )
        assert engine.cache.tree is not None
        engine.cache.tree.store.on_event = self.listener
        return engine

    # ---- what may happen ----------------------------------------------------------------------

    def prompt(self) -> list[int]:
        """Like most others, or like what was said before, up to a place near a border."""
        pick = self.pick
        start = self.stem
        if self.requests and pick.random() < 0.4:
            request, _ = pick.choice(self.requests)
            start = request.prompt_token_ids + request.generations[0].token_ids
        cut = pick.choice([B, 2 * B - 1, 2 * B, 2 * B + 1, 21, pick.randrange(LENGTH)])
        rest = pick.choices(range(VOCAB), k=pick.choice([1, 2, B, 9]))
        return (start[:cut] + rest)[: LENGTH - pick.choice([0, 1, 2])]

    def add(self) -> None:
        pick, prompt = self.pick, self.prompt()
        params = SamplingParams(
            n=pick.choice([1, 1, 1, 3]),
            temperature=pick.choice([0.0, 1.0]),
            seed=pick.randrange(6),
            max_tokens=min(pick.choice([0, 1, 2, 9, 40]), LENGTH - len(prompt)),
            repetition_penalty=pick.choice([1.0, 1.3]),
            prompt_logprobs=pick.choice([None, None, None, 1]),
            speculative=pick.choice([None, None, "off", "ngram", "draft"]),
            acceptance=pick.choice([None, None, Acceptance.REJECTION.value]),
        )
        length = pick.choice([None, None, None, 2, 99])
        request = self.engine.add(
            prompt,
            params,
            cache_salt=pick.choice(["", "", "", "", "a" * 256, None]),
            reads_cache=pick.random() < 0.95,
            priority=pick.choice([0, 0, -1, 3]),
            constraint=None if length is None else Alternating(length),
        )
        self.requests.append((request, length))

    def step(self) -> None:
        for _ in range(self.pick.randrange(1, 7)):
            chance = self.pick.random()
            error: BaseException = RuntimeError("memory")
            if self.pick.random() < 0.5:
                error = KeyboardInterrupt()
            self.model.fail_next = error if chance < 0.01 else None
            self.draft_model.fail_next = error if chance > 0.98 else None
            try:
                self.deltas += self.engine.step()
            except KeyboardInterrupt:
                self.counts["ctrl-c"] += 1
            self.check()

    def of_a_request(self) -> None:
        request, _ = self.pick.choice(self.requests[-8:])
        action = self.pick.choice(["pause", "resume", "resume", "abort"])
        if action == "abort":
            self.deltas += self.engine.abort(request)
        else:
            getattr(self.engine, action)(request)

    def pin(self) -> None:
        request, _ = self.pick.choice(self.requests[-12:])
        tokens = request.prompt_token_ids + request.generations[0].token_ids
        tokens = tokens[: self.pick.randrange(1, len(tokens) + 1)]
        try:
            pin = self.engine.cache.pin(tokens, ttl_s=self.pick.choice([None, 0.001, 1000]))
        except (UsageError, PinsFullError):
            return
        self.pins.append(pin.pin_id)
        self.counts["pinned"] += 1

    def let_go(self) -> None:
        cache, pins = self.engine.cache, self.engine.cache.reuse.pins
        assert pins is not None
        what = self.pick.choice(["release", "release", "expire", "clear", "clear all"])
        if what == "release" and self.pins:
            self.counts["released"] += cache.release(self.pins.pop())
        elif what == "expire":
            pins.expire(time.monotonic() + self.pick.choice([0, 9999]))
        elif what != "release":
            cache.clear(pins=what == "clear all")
            assert cache.tree is not None
            for pin in pins:
                assert cache.tree.peek([*pin.tokens, 0], pin.salt) == len(pin.tokens)

    def save(self) -> None:
        """A piece of a save; once it is whole, what it holds comes back."""
        if self.saving is None:
            saved = self.engine.cache.saved_in(self.directory)
            save = saved.begin_save()
            self.saving = (saved, save) if isinstance(save, PrefixSave) else None
            return
        saved, save = self.saving
        if save.collect(self.pick.choice([1, 2000])):
            save.write()
            return
        assert saved.finish(save).reason is None
        self.saving = None
        report = self.engine.cache.restore(self.directory)
        assert report.num_dropped == 0
        self.counts["restored"] += report.num_positions

    def live(self) -> None:
        """Some turns, and the end."""
        actions: dict[Callable[[], None], int] = {
            self.add: 12, self.step: 50, self.of_a_request: 10, self.pin: 6, self.let_go: 5,
            self.save: 12,
        }  # fmt: skip
        self.add()
        for act in self.pick.choices(list(actions), list(actions.values()), k=70):
            try:
                act()
            except CapacityError:
                self.counts["refused"] += 1
            self.check()
        self.end()

    # ---- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        engine, tree = self.engine, self.engine.cache.tree
        assert tree is not None
        engine.check_invariants()
        assert not tree.store.unwritten
        assert not engine.manager.pending_copies
        assert not engine.speculator.trials
        assert not any(g.sequence.drafts for r in engine.requests() for g in r.generations)
        store, found = tree.store, set[bytes]()
        for _, node in tree.nodes():
            assert node.parent is not None
            found.update(chain(store.hash_of(node.parent), node.tokens, store.page_bytes))
        assert found == self.listener.found
        if self.pick.random() < 0.2:
            assert_sound(engine)

    def end(self) -> None:
        engine = self.engine
        self.model.fail_next = self.draft_model.fail_next = None
        for request in engine.requests():
            engine.resume(request)
        self.deltas += run_all(engine)
        self.check()
        for request, length in self.requests:
            self.check_texts(request, length)
            self.check_account(request)
            self.counts["cached"] += request.num_cached_tokens
            self.counts["preempted"] += request.num_preemptions
            if request.speculation_account is not None:
                self.counts["accepted"] += request.speculation_account.num_accepted
        assert engine.speculator.num_requests == 0
        if isinstance(self.drafter, DraftModel):
            memory = self.drafter.memory
            memory.check()
            memory.prefixes.clear()
            pools = memory.manager.pools
            assert memory.manager.free_counts == tuple(pool.num_blocks for pool in pools)
        engine.cache.clear(pins=True)
        self.check()
        pools = engine.manager.pools
        assert engine.manager.free_counts == tuple(pool.num_blocks for pool in pools)
        if self.saving is not None:
            self.saving[1].abandon()

    def check_account(self, request: Request) -> None:
        """What was cached was not computed, and all else was, once."""
        assert 0 <= request.num_cached_tokens < len(request.prompt_token_ids)
        sample = request.generations[0]
        is_whole = sample.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        is_alone = request.params.n == 1 and request.speculation is None
        if is_whole and is_alone and not request.num_preemptions:
            num_decoded = max(len(sample.token_ids) - 1, 0)
            num_prompt = len(request.prompt_token_ids) - request.num_cached_tokens
            assert request.num_computed_tokens == num_prompt + num_decoded

    def check_texts(self, request: Request, length: int | None) -> None:
        params = request.params
        chosen = request.speculation
        is_free = chosen is not None and chosen.acceptance is Acceptance.REJECTION
        for generation in request.generations:
            key = (request.request_id, generation.index)
            own = [d for d in self.deltas if (d.request_id, d.index) == key]
            reason = generation.finish_reason
            assert reason is not None
            is_cut = reason is FinishReason.ABORT  # by Ctrl-C without a last delta
            assert is_cut or [d.finish_reason for d in own][-1:] == [reason.value]
            told = list(joined.from_iterable(d.token_ids for d in own))
            assert is_cut or told == generation.token_ids
            if is_free and params.temperature > 0:
                continue
            rule = None if length is None else Alternating(length)
            wanted = expected_tokens(self.model, request, generation.index, LENGTH, rule)
            given = generation.token_ids
            is_whole = reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert (wanted if is_whole else wanted[: len(given)]) == given


@pytest.mark.timeout(3600)
def test_lives(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(NUM_LIVES):
        Life(seed, tmp_path / str(seed), counts).live()
    happened = {"ctrl-c", "pinned", "released", "restored", "cached", "preempted", "accepted"}
    assert happened <= {name for name, count in counts.items() if count}
