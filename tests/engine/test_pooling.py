"""Embeddings: one vector for a prompt, the same bits however its tokens are computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import FULL, HIDDEN, ToyModel, make_engine, run_all, window_group

from headrace.engine.account import StepAccount, StepRecord
from headrace.engine.config import Allocator
from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.errors import PromptError, UsageError

GROUPS = (FULL, window_group())
PROMPT = [i * i % 61 for i in range(40)]


def expected(prompt: list[int], params: PoolingParams) -> npt.NDArray[np.float32]:
    """From the toy's oracle, with plain sums."""
    rows = [ToyModel(GROUPS).hidden(prompt[: i + 1]) for i in range(len(prompt))]
    total = np.zeros(HIDDEN)
    for row in rows if params.pooling == "mean" else rows[-1:]:
        total = total + row
    vector = total / (len(prompt) if params.pooling == "mean" else 1)
    if params.normalize:
        vector = vector / np.linalg.norm(vector)
    return vector.astype(np.float32)


def embed(engine: Engine, prompt: list[int], params: PoolingParams) -> npt.NDArray[np.float32]:
    request = engine.add(prompt, params)
    run_all(engine)
    vector = request.output().embedding
    assert vector is not None
    assert vector.dtype == np.float32
    assert vector.shape == (HIDDEN,)
    return vector


@pytest.mark.parametrize("allocator", list(Allocator))
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("num_prompt", [1, 7, 40])
def test_the_vector(allocator: Allocator, pooling: str, normalize: bool, num_prompt: int) -> None:
    params = PoolingParams(pooling, normalize)
    engine = make_engine(ToyModel(GROUPS), budget=7, allocator=allocator)
    vector = embed(engine, PROMPT[:num_prompt], params)
    assert np.abs(vector - expected(PROMPT[:num_prompt], params)).max() <= 1e-7
    if not normalize:  # plain sums in float64, one row after the other
        assert vector.tobytes() == expected(PROMPT[:num_prompt], params).tobytes()
    if normalize:
        assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1, abs=1e-6)
    assert engine.kv_usage().held_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.sampled_from(["mean", "last"]),
    st.integers(1, 17),
    st.integers(0, 4),
    st.sampled_from([0, 3, 100]),
    st.sampled_from(list(Allocator)),
)
def test_chunks_neighbours_and_preemption_change_no_bit(
    prompt: list[int],
    pooling: str,
    budget: int,
    num_neighbours: int,
    slack: int,
    allocator: Allocator,
) -> None:
    params = PoolingParams(pooling)
    whole = embed(make_engine(ToyModel(GROUPS), budget=64), prompt, params)
    blocks = [24 + slack] * 2  # a context of 96 positions in each group, and little more
    engine = make_engine(ToyModel(GROUPS), budget=budget, num_blocks=blocks, allocator=allocator)
    for i in range(num_neighbours):
        engine.add(PROMPT[i:], SamplingParams(max_tokens=40, temperature=0, n=1 + i % 2))
    requests = [engine.add(prompt, params) for _ in range(3)]
    engine.step()
    engine.pause(requests[0])
    run_all(engine)
    engine.resume(requests[0])
    run_all(engine)
    for request in requests:
        vector = request.output().embedding
        assert vector is not None
        assert vector.tobytes() == whole.tobytes()


def test_rows_are_asked_for_once_and_draw_nothing() -> None:
    engine = make_engine(ToyModel(GROUPS), budget=16)
    records: list[StepRecord] = []
    engine.account = StepAccount(on_step=records.append)
    engine.add(PROMPT, PoolingParams("last"))
    engine.add(PROMPT[:10], PoolingParams())
    scored = engine.add(PROMPT[:5], SamplingParams(max_tokens=1, prompt_logprobs=1))
    deltas = run_all(engine)
    assert [(d.token_ids, d.finish_reason) for d in deltas if d.request_id < 2] == [
        ([], "length")
    ] * 2
    assert sum(r.num_hidden_rows for r in records) == 1 + 10
    assert sum(r.num_prompt_rows for r in records) == 4
    assert sum(r.num_logit_rows for r in records) == 1
    assert scored.output().embedding is None


def test_a_prompt_that_fills_the_context() -> None:
    engine = make_engine(ToyModel(GROUPS), max_model_len=40)
    embed(engine, PROMPT, PoolingParams())
    with pytest.raises(PromptError, match="limit is 40"):
        engine.add([*PROMPT, 1], PoolingParams())


def test_values_that_are_not_finite_end_that_request_alone() -> None:
    class Broken(ToyModel):
        def final_hidden(self, batch, rows, rows_per_call=64):  # type: ignore[no-untyped-def]
            for part in super().final_hidden(batch, rows, rows_per_call):
                part[batch.tokens[rows] == 60] = np.inf
                yield part

    engine = make_engine(Broken(GROUPS))
    bad, good = engine.add([1, 60, 2], PoolingParams()), engine.add([1, 2], PoolingParams())
    last = engine.add([1, 60, 2], PoolingParams("last"))
    run_all(engine)
    [end] = bad.output().outputs
    assert (end.finish_reason, bad.output().embedding) == ("error", None)
    assert "not finite" in (end.error or "")
    assert good.output().embedding is not None
    assert last.output().embedding is not None


def test_an_aborted_request_has_no_vector() -> None:
    engine = make_engine(ToyModel(GROUPS), budget=7)
    request = engine.add(PROMPT, PoolingParams())
    engine.step()
    [delta] = engine.abort(request, "deadline")
    assert (delta.finish_reason, delta.error) == ("abort", "deadline")
    assert request.output().embedding is None
    run_all(engine)


def test_params() -> None:
    assert PoolingParams.from_dict({"pooling": "last"}) == PoolingParams("last", True)
    with pytest.raises(UsageError, match="pooling = 'max' is unknown"):
        PoolingParams("max")
    with pytest.raises(UsageError, match="normalize must be true or false"):
        PoolingParams(normalize=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Unknown pooling parameter 'norm'"):
        PoolingParams.from_dict({"norm": True})
