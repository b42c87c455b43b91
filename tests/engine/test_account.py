"""The account of steps: records, totals, and every request's share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from toy import FULL, ToyModel, make_engine, run_all, window_group

from headrace.engine.account import StepAccount, StepRecord, attention_work
from headrace.engine.params import SamplingParams
from headrace.limits.bound import bound
from headrace.limits.machine import quick_rates
from headrace.limits.step_limits import StepLimits
from headrace.ops.batch import Batch
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from small_program import small_program

GREEDY = SamplingParams(max_tokens=4, temperature=0)


@dataclass
class Limit:
    bound_s: float
    operations: int
    read_bytes: int
    written_bytes: int


@dataclass
class CountLimits:
    """Every step's limit is a different number, made of its counts."""

    windows: tuple[int | None, ...] = (None, 21)
    seen: list[tuple[list[int], list[int], list[int]]] = field(default_factory=list)

    def step(self, rows: tuple[int, ...], pairs: Sequence[int], before: Sequence[int]) -> Limit:
        self.seen.append((list(rows), list(pairs), list(before)))
        return Limit(2.0 ** len(self.seen), sum(rows), sum(pairs), sum(before))


class Book(list[StepRecord]):
    def __init__(self) -> None:
        super().__init__()
        self.limits = CountLimits()
        self.account = StepAccount(self.limits, self.append)


def test_what_a_step_was() -> None:
    book = Book()
    engine = make_engine(ToyModel((FULL, window_group())), budget=16, max_num_seqs=2)
    engine.account = book.account
    engine.add([1, 2, 3], GREEDY)
    engine.step()
    engine.add(list(range(30)), GREEDY.replace(prompt_logprobs=0))
    engine.add([4], GREEDY)
    engine.step()
    first, second = book
    assert (first.num_seqs, first.num_prefill_tokens, first.num_decode_tokens) == (1, 3, 0)
    assert (first.num_logit_rows, first.num_prompt_rows) == (1, 0)
    assert (second.num_seqs, second.num_prefill_tokens, second.num_decode_tokens) == (2, 15, 1)
    assert (second.num_logit_rows, second.num_prompt_rows) == (1, 15)
    assert (second.num_running, second.num_waiting, second.num_paused) == (2, 1, 0)
    assert second.held_bytes == engine.kv_usage().held_bytes > 0
    assert second.started_s >= first.started_s + first.step_s
    assert book.limits.seen[1] == (
        [16, 1, 15, 0],
        [4 + 15 * 16 // 2, 4 + 15 * 16 // 2],
        [3, 3],
    )
    assert second.pairs == book.limits.seen[1][1]
    assert not second.failed
    run_all(engine)
    assert book[-1].num_running == book[-1].num_waiting == book[-1].held_bytes == 0
    assert len(book) == engine.num_steps
    assert book.account.step_s == pytest.approx(sum(r.step_s for r in book))
    assert book.account.operations == sum(sum(rows) for rows, _, _ in book.limits.seen)
    assert book.account.read_bytes == sum(sum(pairs) for _, pairs, _ in book.limits.seen)
    assert book.account.written_bytes == sum(sum(before) for _, _, before in book.limits.seen)


def test_a_request_has_a_whole_share_of_its_steps_and_no_other() -> None:
    """Limits are powers of two: a sum of them tells which steps are in it."""
    book = Book()
    engine = make_engine(ToyModel((FULL, window_group())), budget=16)
    engine.account = book.account
    first = engine.add([1, 2, 3], GREEDY)  # steps 1 … 4
    engine.step()
    second = engine.add([4, 5], GREEDY.replace(n=3))  # steps 2 … 5, once for all samples
    run_all(engine)
    assert first.bound_s == 2 + 4 + 8 + 16
    assert second.bound_s == 4 + 8 + 16 + 32
    assert book.account.bound_s == 2 + 4 + 8 + 16 + 32
    assert first.step_s == pytest.approx(sum(r.step_s for r in book[:4]))
    assert second.metrics().step_s == pytest.approx(sum(r.step_s for r in book[1:]))
    assert second.output().metrics.bound_s == second.bound_s


def test_preempted_and_paused() -> None:
    book = Book()
    engine = make_engine(ToyModel((FULL, window_group())), num_blocks=[24, 24])
    engine.account = book.account
    long = SamplingParams(max_tokens=40, temperature=0)
    requests = [engine.add(list(range(30 + i)), long) for i in range(3)]
    engine.step()
    engine.pause(requests[0])
    engine.step()
    assert book[-1].num_paused == 1
    engine.resume(requests[0])
    run_all(engine)
    assert sum(r.num_preempted for r in book) == engine.num_preemptions > 0


def test_a_failed_step_has_no_limit() -> None:
    book, model = Book(), ToyModel()
    engine = make_engine(model)
    engine.account = book.account
    request = engine.add([1, 2], GREEDY)
    model.fail_next = RuntimeError("broken")
    engine.step()
    assert [r.failed for r in book] == [True]
    assert book[0].limit is None
    assert request.metrics().bound_s is None
    assert book.account.step_s == 0


def test_an_observer_that_fails_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def observer(record: StepRecord) -> None:
        calls.append(record)
        raise ValueError("no disk")

    engine = make_engine(ToyModel())
    engine.account = StepAccount(on_step=observer)
    request = engine.add([1, 2], GREEDY)
    run_all(engine)
    assert request.output().outputs[0].finish_reason == "length"
    assert len(calls) == 1
    assert "no disk" in caplog.text
    assert request.metrics().bound_s is None  # nobody knew limits


@pytest.mark.parametrize("window", [None, 1, 2, 9, 100])
@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 4, 1], [7, 3, 9], [1]])
def test_attention_work(counts: list[int], window: int | None) -> None:
    for extra in range(12):
        contexts = [n + extra * i for i, n in enumerate(counts)]
        chunks = [Chunk(n, c) for n, c in zip(counts, contexts, strict=True)]
        seen = [min(p + 1, window or p + 1) for c in chunks for p in range(c.start, c.context)]
        pairs, before = attention_work(counts, contexts, [window])
        assert pairs == [sum(seen)]
        assert before == [sum(c.visible_before(window) for c in chunks)]


def test_the_account_of_an_engine() -> None:
    """Every step that an engine runs, prompts in chunks and forks included, against its ops."""
    program = small_program()
    native = NativeModel(program, num_threads=1)
    steps: list[tuple[list[Chunk], int, int]] = []
    run = native.run

    def watched(batch: Batch) -> npt.NDArray[np.float32]:
        sizes, contexts = np.diff(batch.spans).tolist(), batch.context_lens.tolist()
        chunks = [Chunk(n, c) for n, c in zip(sizes, contexts, strict=True)]
        steps.append((chunks, len(batch.logit_rows), len(batch.prompt_rows)))
        return run(batch)

    native.run = watched  # type: ignore[method-assign]
    engine = make_engine(native, block_size=16, budget=20, max_model_len=200)
    rates = quick_rates(1)
    model = CostModel(program, kv_format=KVFormat.F32, cache_bytes=4_000)
    records: list[StepRecord] = []
    engine.account = StepAccount(StepLimits(model, rates), records.append)
    params = SamplingParams(max_tokens=9, temperature=0)
    engine.add(list(range(90)), params.replace(prompt_logprobs=0))
    engine.add(list(range(7)), params.replace(n=3, temperature=1, seed=1))
    run_all(engine)
    assert len(steps) == len(records) > 10
    for (chunks, logits, prompts), record in zip(steps, records, strict=True):
        cost = model.step(chunks, num_logit_rows=logits, num_prompt_rows=prompts)
        assert record.limit is not None
        assert record.limit.bound_s == bound(cost, rates).bound_s
        assert record.step_s > 0
