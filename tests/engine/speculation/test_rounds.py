"""Speculative = plain on the toy model: every field of every answer, whatever drafts come; and the
drafts of one sequence cost no other anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from speculation.drafters import AnyDrafter, Liar, Seer
from test_constraint import Rule
from toy import FULL, VOCAB, ToyModel, make_engine, run_all, window_group

from headrace.engine.config import Allocator
from headrace.engine.constraint import Constraint
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.outputs import CompletionOutput, Delta
from headrace.engine.params import SamplingParams
from headrace.engine.request import Sequence
from headrace.engine.speculation.choice import Choice, Speculative
from headrace.engine.speculation.drafter import Ask
from headrace.engine.speculation.ngram import NgramDrafter
from headrace.errors import UsageError

BOTH = (FULL, window_group())
GREEDY = SamplingParams(temperature=0, max_tokens=30, speculative="draft", num_draft_tokens=5)
SEEDED = GREEDY.replace(temperature=0.9, seed=7)
DRAFTERS: dict[str, Callable[[ToyModel], Seer]] = {
    "seer": Seer,
    "liar": Liar,
    "any": lambda model: AnyDrafter(model, 5),
}


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 17 + i * i * 7 + i) % VOCAB for i in range(length)]


def play(
    jobs: list[tuple[list[int], SamplingParams]],
    make_drafter: Callable[[ToyModel], Seer] | None,
    *,
    constraint: Callable[[], Constraint] | None = None,
    bad_token: int | None = None,
    **sizes: Any,
) -> tuple[list[list[CompletionOutput]], list[Request], Engine]:
    """All jobs at once in one engine; None: nobody guesses."""
    model = ToyModel(BOTH, bad_token=bad_token)
    engine = make_engine(model, draft=(make_drafter or Seer)(model), **sizes)
    requests = []
    for ids, params in jobs:
        if make_drafter is None:
            params = params.replace(speculative="off")
        rule = None if constraint is None else constraint()
        requests.append(engine.add(ids, params, constraint=rule))
    deltas = run_all(engine)
    check_deltas(deltas, requests)
    return [request.output().outputs for request in requests], requests, engine


def check_deltas(deltas: list[Delta], requests: list[Request]) -> None:
    """What was streamed is what came out."""
    for request in requests:
        for output in request.output().outputs:
            own = [
                d for d in deltas if (d.request_id, d.index) == (request.request_id, output.index)
            ]
            assert "".join(d.text for d in own) == output.text
            assert list(chain.from_iterable(d.token_ids for d in own)) == output.token_ids
            if output.logprobs is not None:
                told = list(chain.from_iterable(d.logprobs or [] for d in own))
                assert told == output.logprobs
            assert [d.finish_reason for d in own[:-1]] == [None] * (len(own) - 1)
            assert own[-1].finish_reason == output.finish_reason
            assert (own[-1].stop_reason, own[-1].error) == (output.stop_reason, output.error)


CASES: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "three samples": SEEDED.replace(n=3),
    "penalties": SEEDED.replace(
        repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2
    ),
    "stages": SEEDED.replace(top_k=9, top_p=0.9, min_p=0.02, typical_p=0.95),
    "logprobs": SEEDED.replace(logprobs=3, trace=4),
    "processed logprobs": SEEDED.replace(logprobs=2, logprobs_mode="processed", top_k=5),
    "prompt logprobs": GREEDY.replace(prompt_logprobs=2),
    "min tokens": SEEDED.replace(min_tokens=12, stop_token_ids=list(range(30)), ignore_eos=True),
    "stop ids": SEEDED.replace(stop_token_ids=[3, 9, 27, 33], include_stop_str_in_output=True),
    "stop strings": SEEDED.replace(stop=["B", "дA", "ж"]),
    "one token": GREEDY.replace(max_tokens=1),
    "two tokens": GREEDY.replace(max_tokens=2),
    "context end": SEEDED.replace(max_tokens=None),
    "as many as pay": SEEDED.replace(num_draft_tokens=None),
    "bias": SEEDED.replace(logit_bias={4: 3.0}, banned_token_ids=[5], allowed_token_ids=range(40)),
}


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
@pytest.mark.parametrize("case", sorted(CASES))
def test_every_field_is_that_of_plain_decoding(case: str, drafter: str) -> None:
    jobs = [(prompt(i, 5 + 6 * i), CASES[case]) for i in range(3)]
    plain, _, _ = play(jobs, None, max_num_seqs=9)
    got, requests, _ = play(jobs, DRAFTERS[drafter], max_num_seqs=9)
    assert got == plain
    accounts = [r.metrics().speculation for r in requests]
    assert all(a is not None for a in accounts)
    accepted = sum(a.num_accepted for a in accounts if a is not None)
    drafted = sum(a.num_drafted for a in accounts if a is not None)
    if max(len(o.token_ids) for outputs in plain for o in outputs) > 2:
        assert drafted > 0
        assert (accepted > 0) == (drafter != "liar"), "the event under test did not happen"


@pytest.mark.parametrize("length", [1, 4, 9, None])
@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_a_grammar_moves_by_kept_tokens(drafter: str, length: int | None) -> None:
    jobs = [(prompt(i, 7), p) for i, p in enumerate([GREEDY, SEEDED.replace(n=2)])]
    plain, _, _ = play(jobs, None, constraint=lambda: Rule(length))
    got, _, _ = play(jobs, DRAFTERS[drafter], constraint=lambda: Rule(length))
    assert got == plain


@pytest.mark.parametrize("member", ["mask", "accept", "finished"])
def test_trouble_of_a_grammar_in_a_later_round_is_that_of_plain_decoding(member: str) -> None:
    for count in (2, 3, 7):
        rule = partial(Rule, 9, fails=(member, count))
        plain, _, _ = play([(prompt(1, 7), GREEDY)], None, constraint=rule)
        got, _, _ = play([(prompt(1, 7), GREEDY)], Seer, constraint=rule)
        assert got == plain
        assert got[0][0].finish_reason == "error"


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_a_bad_row_ends_its_request_when_it_is_drawn_from_and_not_before(drafter: str) -> None:
    ends = set()
    for bad_token in range(12):
        jobs = [(prompt(i, 6), SEEDED.replace(seed=i)) for i in range(4)]
        plain, _, _ = play(jobs, None, bad_token=bad_token)
        got, _, _ = play(jobs, DRAFTERS[drafter], bad_token=bad_token)
        assert got == plain
        ends |= {o.finish_reason for outputs in got for o in outputs}
    assert ends == {"error", "length"}


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_tiny_pools_preempt_and_change_nothing(drafter: str) -> None:
    jobs = [(prompt(i, 9), SEEDED.replace(seed=i, max_tokens=40)) for i in range(4)]
    sizes: dict[str, Any] = {"num_blocks": [16, 16], "budget": 17}
    plain, _, _ = play(jobs, None, **sizes)
    got, requests, engine = play(jobs, DRAFTERS[drafter], **sizes)
    assert got == plain
    assert engine.num_preemptions > 0
    assert sum(r.num_preemptions for r in requests) > 0


def test_some_speculate_and_some_do_not_in_one_step() -> None:
    jobs = [
        (prompt(0, 5), GREEDY),
        (prompt(1, 30), SEEDED.replace(speculative="off")),
        ([1, 2, 3] * 8, SEEDED.replace(speculative="ngram")),
        (prompt(3, 40), SEEDED.replace(speculative=None)),
    ]
    plain, _, _ = play(jobs, None)
    got, requests, engine = play(jobs, Seer)
    assert got == plain
    assert [r.metrics().speculation is not None for r in requests] == [True, False, True, False]
    assert isinstance(engine.executor, ToyModel)
    assert any(len(set(batch)) > 1 and len(batch) > 2 for batch in engine.executor.batches)


def test_the_rows_of_a_verify_step_are_those_of_plain_decoding() -> None:
    """Row by row, across the window's edge, with ever more drafts: the cache that a verify step
    reads holds all that its first row sees."""

    class Rows:
        def __init__(self) -> None:
            self.seen: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

        def rows(self, plan: Any) -> list[int]:
            return []

        def score(self, plan: Any, batch: Any) -> list[Sequence]:
            return []

        def drawn_from(self, sequence: Sequence, logits: npt.NDArray[np.float32]) -> None:
            assert (*sequence.order, sequence.num_tokens) not in self.seen, "a row drawn from twice"
            self.seen[(*sequence.order, sequence.num_tokens)] = np.array(logits)

    seen = []
    for number in (None, 1, 2, 3, 5, 8):
        model, rows = ToyModel(BOTH), Rows()
        plain = make_engine(model)
        engine = Engine(model, plain.vocabulary, plain.config, rows, draft=Seer(model))
        params = SEEDED.replace(max_tokens=60, num_draft_tokens=number)
        engine.add(prompt(2, 13), params if number else params.replace(speculative="off"))
        run_all(engine)
        if number:
            assert max(max(b) for b in model.batches[2:]) == 1 + number
            assert len(model.batches) <= 2 + -(-60 // (1 + number))
        seen.append(rows.seen)
    assert len(seen[0]) == 60
    for other in seen[1:]:
        assert other.keys() == seen[0].keys()
        assert all((other[key] == seen[0][key]).all() for key in other)


def test_the_account_adds_up() -> None:
    jobs = [(prompt(i, 6), SEEDED.replace(seed=i, num_draft_tokens=4)) for i in range(3)]
    _, requests, engine = play(jobs, lambda model: AnyDrafter(model, 3))
    total = engine.speculator.total
    accounts = [r.metrics().speculation for r in requests]
    for field in ("num_rounds", "num_drafted", "num_tested", "num_accepted", "num_cut"):
        assert getattr(total, field) == sum(getattr(account, field) for account in accounts)
    assert 0 < total.num_accepted < total.num_tested < total.num_drafted
    assert sum(total.accepted_at) == total.num_accepted
    assert sum(total.tested_at) == total.num_tested
    assert total.tested_at == sorted(total.tested_at, reverse=True)
    assert total.acceptance_rate == total.num_accepted / total.num_tested
    assert len(total.tested_at) <= 4


def test_a_drafter_hears_what_was_kept_and_when_it_is_over() -> None:
    model = ToyModel(BOTH)
    seer = Seer(model)
    engine = make_engine(model, draft=seer)
    first = engine.add(prompt(1, 6), GREEDY.replace(num_draft_tokens=3, max_tokens=14))
    second = engine.add(prompt(2, 6), GREEDY.replace(n=2, seed=1))
    third = engine.add(prompt(3, 6), GREEDY)
    for _ in range(3):
        engine.step()
    engine.abort(third)
    run_all(engine)
    assert [kept for order, kept in seer.notes if order == (0, 0)] == [3, 3, 3]
    assert sorted(seer.forgotten) == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert first.finished
    assert second.finished
    assert engine.speculator.num_requests == 0


def test_pausing_between_verify_steps_changes_nothing() -> None:
    plain, _, _ = play([(prompt(1, 9), SEEDED)], None)
    model = ToyModel(BOTH)
    engine = make_engine(model, draft=Seer(model))
    request = engine.add(prompt(1, 9), SEEDED.replace(num_draft_tokens=2))
    while not request.finished:
        engine.step()
        engine.pause(request)
        assert not engine.has_work
        assert all(not s.drafts for s in engine.scheduler.paused)
        engine.resume(request)
    assert request.output().outputs == plain[0]


def test_a_failing_step_leaves_no_drafts_behind() -> None:
    for error in (RuntimeError("memory"), KeyboardInterrupt()):
        model = ToyModel(BOTH)
        engine = make_engine(model, draft=Seer(model))
        request = engine.add(prompt(1, 9), GREEDY)
        engine.step()
        engine.step()
        model.fail_next = error
        try:
            engine.step()
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
        assert request.finished
        assert not engine.speculator.trials
        assert engine.speculator.num_requests == 0
        after = engine.add(prompt(1, 9), GREEDY)
        run_all(engine)
        assert after.output().outputs == play([(prompt(1, 9), GREEDY)], None)[0][0]


def test_ctrl_c_while_somebody_guesses_leaves_no_drafts_behind() -> None:
    """Of those who had drafts already, nobody takes a step for granted that never came."""

    class Slow(Seer):
        def propose(self, asks: Any) -> Any:
            if self.num_asked == 3:
                raise KeyboardInterrupt
            return super().propose(asks)

    ones = GREEDY.replace(speculative="ngram", num_draft_tokens=2, allowed_token_ids=[1])
    jobs = [([1] * 9, ones), (prompt(2, 9), GREEDY)]
    plain = play(jobs, None)[0]
    model = ToyModel(BOTH)
    drafter = Slow(model)
    engine = make_engine(model, draft=drafter)
    requests = [engine.add(ids, params) for ids, params in jobs]
    with pytest.raises(KeyboardInterrupt):
        run_all(engine)
    account = requests[0].speculation_account
    assert account is not None
    assert account.num_drafted > 0
    assert not engine.speculator.trials
    assert not any(g.sequence.drafts for r in requests for g in r.generations)
    drafter.num_asked += 1
    run_all(engine)
    assert [request.output().outputs for request in requests] == plain


def test_a_failing_drafter_costs_speed_only(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Seer):
        def propose(self, asks: Any) -> Any:
            raise ValueError("no model")

    jobs = [(prompt(1, 9), GREEDY), ([1, 2, 3] * 8, SEEDED.replace(speculative="ngram"))]
    assert play(jobs, Broken)[0] == play(jobs, None)[0]


def test_ngrams_guess_what_followed_before() -> None:
    """Greedy toy text never repeats, so the drafter is asked alone."""
    drafter = NgramDrafter()
    model = ToyModel(BOTH)
    engine = make_engine(model)
    request = engine.add([5, 6, 7, 8, 9, 10, 5, 6, 7], GREEDY.replace(speculative="off"))
    engine.step()
    generation = request.generations[0]
    generation.sequence.tokens[-1] = 8
    assert drafter.propose([Ask(generation, 2)])[0].tokens == [9, 10]
    assert drafter.propose([Ask(generation, 40)])[0].tokens[:3] == [9, 10, 5]


def test_choices_are_checked_at_the_door() -> None:
    engine = make_engine(ToyModel())
    with pytest.raises(UsageError, match="draft model"):
        engine.add([1], GREEDY)
    engine = make_engine(ToyModel(), allocator=Allocator.NONE)
    with pytest.raises(UsageError, match="KV cache"):
        engine.add([1], GREEDY.replace(speculative="ngram"))
    with pytest.raises(UsageError, match="draft model"):
        make_engine(ToyModel(), speculation=Choice(Speculative.DRAFT))
    for wrong in (
        {"speculative": "medusa"},
        {"speculative": 3},
        {"acceptance": "always"},
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 65},
        {"num_draft_tokens": "four"},
    ):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            SamplingParams(**wrong)  # type: ignore[arg-type]
