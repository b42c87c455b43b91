"""Constraints in the engine, on the toy model: masks hold, samples end, trouble stays local."""

from __future__ import annotations

import numpy as np
import pytest
from toy import FULL, VOCAB, ToyModel, make_engine, run_all, window_group

from headrace.engine import sampler
from headrace.engine.config import Allocator
from headrace.engine.core import Engine
from headrace.engine.generation import Generation, Request
from headrace.engine.params import SamplingParams
from headrace.engine.sampler import TokenMask

BOTH = (FULL, window_group())
END = 60
GREEDY = SamplingParams(temperature=0, max_tokens=30)


def allowed_after(tokens: list[int], length: int | None) -> set[int]:
    """The rule: what may follow depends on every token so far. From `length` tokens on, the end."""
    state = 1
    for token in tokens:
        state = state * 3 + token + 1
    ids = {i for i in range(VOCAB - 1) if i % 7 == state % 7}
    return ids if length is None or len(tokens) < length else {END}


class Rule:
    """allowed_after as a Constraint. Fails in the named member once so many tokens are out."""

    def __init__(
        self, length: int | None = None, *, stops: bool = True, fails: tuple[str, int] = ("", 0)
    ) -> None:
        self.tokens: list[int] = []
        self.length, self.stops, self.fails = length, stops, fails

    def _maybe_fail(self, member: str) -> None:
        if (member, len(self.tokens)) == self.fails:
            raise RuntimeError(f"no {member}")

    def mask(self) -> TokenMask | None:
        self._maybe_fail("mask")
        ids = allowed_after(self.tokens, self.length)
        bits = np.array([i in ids for i in range(64)])
        return np.packbits(bits, bitorder="little").view("<u4")

    def accept(self, token: int) -> None:
        assert token in allowed_after(self.tokens, self.length)
        self.tokens.append(token)
        self._maybe_fail("accept")

    def fork(self) -> Rule:
        copy = Rule(self.length, stops=self.stops, fails=self.fails)
        copy.tokens = list(self.tokens)
        return copy

    @property
    def finished(self) -> bool:
        self._maybe_fail("finished")
        return self.stops and self.length is not None and len(self.tokens) >= self.length


class Nothing(Rule):
    """No constraint at all, until the third token."""

    def mask(self) -> TokenMask | None:
        return None if len(self.tokens) < 3 else super().mask()

    def accept(self, token: int) -> None:
        self.tokens.append(token)


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 17 + i * i * 7 + i) % VOCAB for i in range(length)]


def expected(
    model: ToyModel, request: Request, index: int, length: int | None, *, most: int
) -> list[int]:
    """From the toy's oracle, the rule and the sampler alone: no cache, no batch, no constraint
    object. The sampler is given the rule as allowed_token_ids."""
    history, tokens = list(request.prompt_token_ids), []
    while len(tokens) < most and (length is None or len(tokens) < length):
        ids = sorted(allowed_after(tokens, length))
        params = request.params.replace(allowed_token_ids=ids)
        state = sampler.make_state(
            params, request.prompt_token_ids, seed=request.seed, sample_index=index
        )
        for token in tokens:
            state.accept(token)
        row = model.logits(history).reshape(1, -1)
        token = sampler.sample(row, [state], [len(history)], VOCAB)[0].token
        tokens.append(token)
        history.append(token)
    return tokens


def first(request: Request) -> Generation:
    return request.generations[0]


def reason(request: Request, index: int = 0) -> str | None:
    return request.output().outputs[index].finish_reason


KINDS = [
    GREEDY,
    SamplingParams(seed=5, max_tokens=30),
    SamplingParams(seed=5, max_tokens=30, top_k=3, top_p=0.9, min_p=0.05, repetition_penalty=1.3),
    SamplingParams(seed=7, max_tokens=30, typical_p=0.8, presence_penalty=0.5, logprobs=3, trace=2),
    SamplingParams(temperature=0, max_tokens=30, logit_bias={3: 5.0}, frequency_penalty=0.4),
]


@pytest.mark.parametrize("params", KINDS)
@pytest.mark.parametrize("length", [None, 1, 9])
def test_every_token_follows_the_rule(params: SamplingParams, length: int | None) -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model)
    request = engine.add(prompt(1, 10), params, constraint=Rule(length))
    run_all(engine)
    want = expected(model, request, 0, length, most=30)
    assert first(request).token_ids == want
    assert reason(request) == ("length" if length is None else "stop")
    assert first(request).stop_reason is None


@pytest.mark.parametrize("allocator", list(Allocator))
@pytest.mark.parametrize("blocks", [None, (14, 14)])
def test_samples_fork_and_preemption_changes_nothing(
    allocator: Allocator, blocks: tuple[int, int] | None
) -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, allocator=allocator, num_blocks=blocks, max_num_seqs=6)
    params = SamplingParams(seed=3, n=3, max_tokens=24)
    plain = engine.add(prompt(9, 12), SamplingParams(seed=1, max_tokens=24))
    requests = [engine.add(prompt(i, 6 + i), params, constraint=Rule(20)) for i in range(3)]
    run_all(engine)
    if allocator is Allocator.PAGED and blocks is not None:
        assert sum(r.num_preemptions for r in [plain, *requests]) > 0
    for request in requests:
        texts = [g.token_ids for g in request.generations]
        assert texts == [expected(model, request, i, 20, most=24) for i in range(3)]
        assert len({tuple(t) for t in texts}) == 3
        assert [reason(request, i) for i in range(3)] == ["stop"] * 3
    alone = make_engine(ToyModel(BOTH))
    again = alone.add(prompt(9, 12), SamplingParams(seed=1, max_tokens=24))
    run_all(alone)
    assert first(again).token_ids == first(plain).token_ids


def test_an_end_id_ends_where_the_constraint_does_not_stop_by_itself() -> None:
    engine = make_engine(ToyModel(BOTH), eos_ids=frozenset({END}))
    a = engine.add(prompt(1, 5), GREEDY, constraint=Rule(4, stops=False))
    b = engine.add(prompt(1, 5), GREEDY, constraint=Rule(4))
    run_all(engine)
    assert first(a).token_ids == [*first(b).token_ids, END]
    assert reason(a) == reason(b) == "stop"


def test_a_point_without_a_mask_is_free() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model)
    free = engine.add(prompt(2, 8), GREEDY)
    request = engine.add(prompt(2, 8), GREEDY, constraint=Nothing())
    run_all(engine)
    tokens = first(request).token_ids
    assert tokens[:3] == first(free).token_ids[:3]
    for i in range(3, 30):
        assert tokens[i] in allowed_after(tokens[:i], None)


@pytest.mark.parametrize("member", ["mask", "accept", "finished"])
def test_a_failing_constraint_ends_its_sample_and_no_other(member: str) -> None:
    def run(engine: Engine) -> tuple[Request, Request]:
        neighbour = engine.add(prompt(4, 7), GREEDY, constraint=Rule(12))
        return neighbour, engine.add(prompt(5, 7), GREEDY, constraint=Rule(fails=(member, 5)))

    engine = make_engine(ToyModel(BOTH))
    neighbour, failing = run(engine)
    deltas = run_all(engine)
    output = failing.output().outputs[0]
    assert output.finish_reason == "error"
    assert output.error == f"The structured output cannot go on: no {member}"
    assert len(output.token_ids) == 5
    ends = [d for d in deltas if d.request_id == failing.request_id and d.finish_reason]
    assert [d.error for d in ends] == [output.error]
    assert first(neighbour).token_ids == expected(ToyModel(BOTH), neighbour, 0, 12, most=30)
    assert engine.manager.free_counts == tuple(p.num_blocks for p in engine.manager.pools)


def test_what_the_rule_allows_can_be_banned_away_with_one_clear_error() -> None:
    engine = make_engine(ToyModel(BOTH), eos_ids=frozenset({END}), max_num_seqs=8)
    held = engine.add(prompt(1, 5), GREEDY.replace(min_tokens=9), constraint=Rule(4, stops=False))
    short = engine.add(prompt(1, 5), GREEDY.replace(min_tokens=9), constraint=Rule(4))
    enough = engine.add(prompt(1, 5), GREEDY.replace(min_tokens=4), constraint=Rule(4))
    only = GREEDY.replace(allowed_token_ids=[END])
    banned = engine.add(prompt(1, 5), only, constraint=Rule(4))
    run_all(engine)
    assert [len(first(r).token_ids) for r in (held, short, enough, banned)] == [4, 4, 4, 0]
    assert [reason(r) for r in (held, short, enough, banned)] == ["error", "error", "stop", "error"]
    assert "held back by min_tokens" in (first(held).error or "")
    assert "min_tokens = 9 cannot be reached" in (first(short).error or "")
    assert "what the structured output allows is banned" in (first(banned).error or "")


def test_a_constraint_that_cannot_fork_is_refused_at_the_door() -> None:
    class Single(Rule):
        def fork(self) -> Rule:
            raise RuntimeError("no copies")

    engine = make_engine(ToyModel(BOTH))
    with pytest.raises(RuntimeError, match="no copies"):
        engine.add(prompt(1, 5), SamplingParams(n=2, max_tokens=4), constraint=Single())
    assert not engine.has_work
    engine.add(prompt(1, 5), SamplingParams(n=1, max_tokens=4), constraint=Single(2))
    run_all(engine)
