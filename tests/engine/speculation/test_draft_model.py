"""DraftModel against an oracle without cache: whatever was kept, dropped, paused or preempted
before, a draft is what the draft model alone, fed the target's tokens, would draw."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from toy import FULL, VOCAB, ToyModel, make_engine, run_all, window_group

from headrace.engine import sampler
from headrace.engine.constraint import Constraint
from headrace.engine.core import Engine
from headrace.engine.generation import Generation
from headrace.engine.params import SamplingParams
from headrace.engine.request import Status
from headrace.engine.sizing import PoolPlan
from headrace.engine.speculation.draft_model import DraftModel
from headrace.engine.speculation.drafter import Ask, Draft
from headrace.engine.speculation.follower import MAX_READY_ROWS
from headrace.ops.executor import Executor

GROUPS = {"full": (FULL,), "window": (window_group(),), "both": (FULL, window_group(9))}


class Worse(ToyModel):
    """A model that is right about every third history."""

    def _rows(self, batch, rows):  # type: ignore[no-untyped-def]
        out = super()._rows(batch, rows)
        return np.stack([self.spoil(row) for row in out]) if len(out) else out

    def logits(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.spoil(super().logits(history))

    def spoil(self, row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return row if int(row[0] * 1e6) % 3 == 0 else -row


def draft_model(
    engine: Engine, model: Executor, num_blocks: Sequence[int] | None = None, num_ids: int = VOCAB
) -> DraftModel:
    config = engine.config
    if num_blocks is not None:
        config = replace(config, pools=PoolPlan(tuple(num_blocks), config.pools.block_bytes))
    return DraftModel(model, config, num_ids)


def expected(model: ToyModel, ask: Ask) -> list[int]:
    """The whole draft, from the model's formula and the sampler alone."""
    generation, params = ask.generation, ask.generation.request.params
    history = list(generation.sequence.tokens)
    request = generation.request
    eos_ids = sorted(request.eos_ids)
    state = sampler.make_state(
        params,
        request.prompt_token_ids,
        eos_ids=eos_ids,
        seed=request.seed,
        sample_index=generation.index,
    )
    for token in generation.token_ids:
        state.accept(token)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else request.eos_ids)
    constraint = None if generation.constraint is None else generation.constraint.fork()
    tokens: list[int] = []
    while len(tokens) < ask.limit:
        row = model.logits(history).reshape(1, -1)
        masks = None if constraint is None else [constraint.mask()]
        [drawn] = sampler.sample(row, [state], [len(history)], VOCAB, masks=masks)
        if drawn.status is not sampler.RowStatus.OK or drawn.token in ends:
            break
        tokens.append(drawn.token)
        history.append(drawn.token)
        state.accept(drawn.token)
        if constraint is not None:
            constraint.accept(drawn.token)
            if constraint.finished:
                break
    return tokens


def decoding(engine: Engine) -> list[Generation]:
    return [
        g
        for request in engine.requests()
        for g in request.generations
        if g.sequence.status is Status.RUNNING and g.sequence.num_wanted == 1
    ]


def ask_all(engine: Engine, drafter: DraftModel, limit: int = 4) -> list[tuple[Ask, Draft]]:
    asks = [Ask(generation, limit) for generation in decoding(engine)]
    return list(zip(asks, drafter.propose(asks), strict=True))


class Alternating:
    """A constraint whose state matters: even and odd ids take turns, and it ends after `left`."""

    def __init__(self, left: int, parity: int = 0) -> None:
        self.left = left
        self.parity = parity

    def mask(self) -> sampler.TokenMask:
        bits = np.zeros(96, bool)
        bits[self.parity : VOCAB : 2] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        assert token % 2 == self.parity, "drawn outside the mask"
        self.left -= 1
        self.parity = 1 - self.parity

    def fork(self) -> Constraint:
        return Alternating(self.left, self.parity)

    @property
    def finished(self) -> bool:
        return self.left <= 0


PARAMS = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=1.5, seed=3, max_tokens=24),
    SamplingParams(temperature=0.7, top_k=9, top_p=0.9, seed=4, n=2, max_tokens=20),
    SamplingParams(
        temperature=1.1,
        seed=5,
        max_tokens=30,
        min_tokens=9,
        repetition_penalty=1.4,
        presence_penalty=0.6,
        frequency_penalty=0.3,
    ),
    SamplingParams(temperature=0, max_tokens=22, logprobs=2, frequency_penalty=1.5),
]


@pytest.mark.parametrize("kind", [ToyModel, Worse])
@pytest.mark.parametrize("groups", GROUPS)
def test_a_draft_is_what_the_model_alone_would_say(groups: str, kind: type[ToyModel]) -> None:
    engine = make_engine(
        ToyModel(GROUPS[groups]), max_num_seqs=8, budget=64, eos_ids=frozenset({7, 8})
    )
    model = kind(GROUPS[groups])
    drafter = draft_model(engine, model)
    rng = random.Random(1)
    for i, params in enumerate(PARAMS):
        engine.add([rng.randrange(VOCAB) for _ in range(3 + 4 * i)], params)
    constraint = Alternating(11)
    engine.add(
        [1, 2, 3], SamplingParams(temperature=1, seed=6, max_tokens=30), constraint=constraint
    )
    drafted = 0
    while engine.has_work:
        asks = [Ask(g, rng.randint(1, 6)) for g in decoding(engine) if rng.random() < 0.7]
        for ask, draft in zip(asks, drafter.propose(asks), strict=True):
            assert draft.tokens == expected(model, ask)
            assert draft.distributions is None
            drafted += len(draft.tokens)
        engine.step()
    assert drafted > 100


def test_with_the_targets_own_model_every_draft_comes_true() -> None:
    """Same noise, same penalties, same constraint: nothing is left to differ."""
    engine = make_engine(ToyModel(), max_num_seqs=8, budget=64)
    drafter = draft_model(engine, ToyModel())
    requests = [engine.add([i, 2, 3], params) for i, params in enumerate(PARAMS)]
    said: list[tuple[Generation, int, list[int]]] = []
    while engine.has_work:
        for ask, draft in ask_all(engine, drafter):
            said.append((ask.generation, len(ask.generation.token_ids), draft.tokens))
        engine.step()
    assert sum(len(tokens) for _, _, tokens in said) > 300
    for generation, at, tokens in said:
        kept = generation.token_ids[at : at + len(tokens)]
        assert kept == tokens[: len(kept)]
    assert all(request.finished for request in requests)


@pytest.mark.parametrize("keeps", [False, True])
def test_pools_of_a_few_blocks_cost_drafts_and_nothing_else(keeps: bool) -> None:
    """Random arrivals, aborts, pauses and asks; more samples than the draft's blocks can hold. What
    is drafted is right or short; the counts hold after every call; in the end all is free."""
    for seed in range(6):
        rng = random.Random(seed)
        groups = rng.choice(list(GROUPS.values()))
        target, model = ToyModel(groups), Worse(groups)
        blocks = [rng.randint(12, 40)] * len(groups)
        engine = make_engine(
            target,
            max_num_seqs=6,
            budget=24,
            num_blocks=blocks,
            max_model_len=48,
            prefix_caching=keeps,
        )
        drafter = draft_model(engine, model, [rng.randint(3, 14)] * len(groups))
        requests = []
        drafted = 0
        for step in range(150):
            if step < 60 and rng.random() < 0.3:
                params = replace(rng.choice(PARAMS), max_tokens=rng.randint(9, 16))
                prompt = [rng.randrange(2) for _ in range(rng.randint(1, 30))]
                requests.append(engine.add(prompt, params))
            for request in requests:
                if rng.random() < 0.02:
                    engine.abort(request)
                elif rng.random() < 0.05:
                    engine.pause(request)
                elif rng.random() < 0.3:
                    engine.resume(request)
                if request.finished:
                    for generation in request.generations:
                        drafter.forget(generation)
            asks = [Ask(g, rng.randint(1, 9)) for g in decoding(engine) if rng.random() < 0.8]
            for ask, draft in zip(asks, drafter.propose(asks), strict=True):
                whole = expected(model, ask)
                assert draft.tokens == whole[: len(draft.tokens)]
                drafted += len(draft.tokens)
            drafter.memory.check()
            engine.step()
        for request in requests:
            engine.abort(request)
            for generation in request.generations:
                drafter.forget(generation)
        drafter.memory.check()
        for pool in drafter.memory.manager.pools:
            assert pool.num_free + pool.num_reclaimable == pool.num_blocks
        assert drafted > 20


def test_an_unsure_draft_ends_where_it_was_told_to() -> None:
    """By how sure the model is of a row, not by what was drawn from it: also for the rejection
    rule."""
    engine = make_engine(ToyModel(), max_num_seqs=8)
    drafter = draft_model(engine, model := Worse())
    for seed in range(4):
        params = SamplingParams(temperature=seed / 3, seed=seed, max_tokens=40)
        engine.add([seed, 2], params)
    engine.step()
    lengths = set()
    while engine.has_work:
        asks = [Ask(g, 9, i == 3, 0.03**i) for i, g in enumerate(decoding(engine))]
        for ask, draft in zip(asks, drafter.propose(asks), strict=True):
            if not ask.wants_distributions:
                whole = expected(model, ask)
                assert draft.tokens == whole[: len(draft.tokens)]
            history, chance, count = list(ask.generation.sequence.tokens), 1.0, 0
            while count < 9 and chance >= ask.least_chance:
                weights = np.exp(model.logits(history).astype(np.float64))
                chance *= weights.max() / weights.sum()
                history += draft.tokens[count : count + 1]
                count += 1
            assert len(draft.tokens) == count
            lengths.add(count)
        engine.step()
    assert len(lengths) > 2


def test_what_others_have_computed_is_not_computed_again() -> None:
    engine = make_engine(ToyModel(), max_num_seqs=8, budget=64, prefix_caching=True)
    drafter = draft_model(engine, model := ToyModel())
    params = SamplingParams(temperature=1, seed=1, n=3, max_tokens=9)
    request = engine.add([7] * 31, params)
    engine.step()
    assert [len(draft.tokens) for _, draft in ask_all(engine, drafter, 1)] == [1, 1, 1]
    assert model.batches[0][0] == 32
    assert max(model.batches[0][1:]) <= 4, "the prompt's blocks are shared in this very step"
    while engine.has_work:
        ask_all(engine, drafter, 1)
        engine.step()
    for generation in request.generations:
        drafter.forget(generation)
    drafter.memory.check()
    model.batches.clear()
    engine.add([7] * 31 + request.generations[1].token_ids + [1], params.replace(n=1))
    engine.step()
    [(ask, draft)] = ask_all(engine, drafter, 3)
    assert draft.tokens == expected(model, ask)
    assert model.batches[0][0] <= 3, "the next turn goes on where the last one ended"


def test_a_long_prompt_is_caught_up_on_in_bounded_pieces() -> None:
    engine = make_engine(ToyModel(), max_model_len=400, budget=64, num_blocks=[400])
    model = ToyModel()
    drafter = draft_model(engine, model)
    short = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=60))
    engine.step()
    engine.add([5] * 150, SamplingParams(temperature=0, max_tokens=60))
    while engine.has_work and len(decoding(engine)) < 2:
        engine.step()
    model.batches.clear()
    late = 0
    for _ in range(20):
        [(_, first), (_, second)] = ask_all(engine, drafter, 2)
        assert len(first.tokens) == 2, "the other request waits"
        if not second.tokens:
            late += 1
        engine.step()
    assert late == 8  # 16 rows at a time, until no more than MAX_READY_ROWS are missing
    assert max(sum(counts) for counts in model.batches) <= MAX_READY_ROWS + 2
    assert not short.finished


def test_catching_up_that_cannot_pay_is_not_begun() -> None:
    engine = make_engine(ToyModel(), max_model_len=200, budget=128, num_blocks=[100])
    drafter = draft_model(engine, model := ToyModel())
    engine.add([5] * 100, SamplingParams(temperature=0, max_tokens=4))
    engine.step()
    assert [draft.tokens for _, draft in ask_all(engine, drafter)] == [[]]
    assert model.batches == []


def test_prompts_longer_than_the_draft_models_context_go_without() -> None:
    engine = make_engine(ToyModel(), max_model_len=64)
    config = replace(engine.config, max_model_len=16)
    drafter = DraftModel(ToyModel(), config, VOCAB)
    engine.add([4] * 12, SamplingParams(temperature=0, max_tokens=20))
    engine.add([4] * 20, SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    engine.step()
    lengths = []
    for _ in range(6):
        [(first, draft), (_, second)] = ask_all(engine, drafter, 8)
        lengths.append(len(draft.tokens))
        assert not draft.tokens or first.generation.sequence.num_tokens + len(draft.tokens) <= 17
        assert second.tokens == []
        engine.step()
    assert lengths[0] > 0
    assert lengths[-1] == 0


def test_ids_that_the_draft_model_lacks_end_its_drafting() -> None:
    engine = make_engine(ToyModel())
    drafter = draft_model(engine, ToyModel(vocab=40), num_ids=40)
    engine.add([60, 1, 2], SamplingParams(temperature=0, max_tokens=20))
    engine.add([3, 1, 2], SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    [(_, first), (_, second)] = ask_all(engine, drafter)
    assert first.tokens == []
    assert second.tokens
    assert max(second.tokens) < 40


# Kinds, not errors: an error that was raised keeps its frames, and these all the engine, for ever.
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_fails_ends_drafting_for_those_that_took_part(
    kind: type[BaseException],
) -> None:
    engine = make_engine(ToyModel())
    drafter = draft_model(engine, model := ToyModel())
    engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    assert ask_all(engine, drafter)[0][1].tokens
    model.fail_next = kind("broken")
    if issubclass(kind, Exception):
        assert [draft.tokens for _, draft in ask_all(engine, drafter)] == [[]]
    else:
        with pytest.raises(KeyboardInterrupt):
            ask_all(engine, drafter)
    engine.step()
    assert [draft.tokens for _, draft in ask_all(engine, drafter)] == [[]]
    drafter.memory.check()
    assert drafter.memory.manager.free_counts == (drafter.memory.manager.pools[0].num_blocks,)
    engine.add([4, 5], SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    assert len(ask_all(engine, drafter)[1][1].tokens) == 4, "others are served"


def test_logits_that_are_not_finite_end_its_drafting_only() -> None:
    engine = make_engine(ToyModel())
    engine.add([1, 9], SamplingParams(temperature=0, max_tokens=20))
    engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    newest = [g.token_ids[-1] for g in decoding(engine)]
    assert newest[0] != newest[1]
    drafter = draft_model(engine, ToyModel(bad_token=newest[0]))
    for _ in range(2):
        [(_, first), (_, second)] = ask_all(engine, drafter, 1)
        assert first.tokens == []
        assert len(second.tokens) == 1


class Broken(Alternating):
    """Fails at its third token, in `member`."""

    def __init__(self, member: str, left: int = 3) -> None:
        super().__init__(left)
        self.member = member

    def mask(self) -> sampler.TokenMask:
        if self.member == "mask" and self.left == 1:
            raise RuntimeError("no mask")
        return super().mask()

    def accept(self, token: int) -> None:
        super().accept(token)
        if self.member == "accept" and self.left == 1:
            raise RuntimeError("not this one")

    def fork(self) -> Constraint:
        if self.member == "fork":
            raise RuntimeError("no copy")
        copy = Broken(self.member, self.left)
        copy.parity = self.parity
        return copy


@pytest.mark.parametrize("member", ["mask", "accept", "fork"])
def test_a_constraint_that_fails_on_the_drafted_path_ends_its_drafting(member: str) -> None:
    engine = make_engine(ToyModel())
    drafter = draft_model(engine, ToyModel())
    params = SamplingParams(temperature=0, max_tokens=20)
    constraint = Broken(member, 4)
    engine.add([1, 2], params, constraint=constraint)
    engine.add([1, 2, 4], params)
    engine.step()
    [(_, first), (_, second)] = ask_all(engine, drafter, 6)
    assert len(first.tokens) <= 2
    assert len(second.tokens) == 6
    [(_, first), (_, second)] = ask_all(engine, drafter, 6)
    assert first.tokens == []
    assert len(second.tokens) == 6
    assert constraint.left == 3, "the request's own state has moved"


def test_the_rejection_rule_gets_drafts_with_what_they_were_drawn_from() -> None:
    engine = make_engine(ToyModel(), eos_ids=frozenset({0}))
    drafter = draft_model(engine, model := Worse())
    params = SamplingParams(temperature=1.3, top_k=6, seed=1, max_tokens=40)
    requests = [engine.add([i, 1], replace(params, seed=i)) for i in range(3)]
    engine.step()
    seen = 0
    while len(decoding(engine)) == 3:
        asks = [Ask(g, 3, i != 1) for i, g in enumerate(decoding(engine))]
        drafts = drafter.propose(asks)
        assert drafts[1].distributions is None
        assert drafts[1].tokens == expected(model, asks[1])
        for ask, draft in zip(asks, drafts, strict=True):
            if not ask.wants_distributions:
                continue
            assert draft.distributions is not None
            assert len(draft.distributions) == len(draft.tokens)
            history = list(ask.generation.sequence.tokens)
            for token, drawn_from in zip(draft.tokens, draft.distributions, strict=True):
                logits = model.logits(history) / 1.3
                kept = np.sort(np.argsort(-logits, kind="stable")[:6])
                weights = np.exp(logits[kept] - logits.max(), dtype=np.float64)
                assert drawn_from.ids.tolist() == kept.tolist()
                assert np.allclose(drawn_from.probs, weights / weights.sum(), rtol=1e-5)
                assert token in kept
                history.append(token)
                seen += 1
            if 0 not in draft.tokens:
                assert len(draft.tokens) == 3, "only an end id shortens a draft"
        engine.step()
    assert seen > 20
    assert requests
    run_all(engine)
