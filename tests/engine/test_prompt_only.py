"""max_tokens 0: a request of which only the prompt is computed."""

from __future__ import annotations

import pytest
from toy import FULL, ToyModel, make_engine, run_all, window_group

from headrace.engine.config import Allocator
from headrace.engine.params import SamplingParams
from headrace.errors import PromptError

PROMPT = list(range(1, 40))
SCORED = SamplingParams(max_tokens=0, prompt_logprobs=2)


@pytest.mark.parametrize("allocator", list(Allocator))
@pytest.mark.parametrize("num_prompt", [1, 2, 31, 39])
def test_it_ends_with_its_prompt_scored(allocator: Allocator, num_prompt: int) -> None:
    engine = make_engine(ToyModel((FULL, window_group())), budget=7, allocator=allocator)
    prompt = PROMPT[:num_prompt]
    drawn = engine.add(prompt, SamplingParams(max_tokens=1, prompt_logprobs=2))
    run_all(engine)
    request = engine.add(prompt, SCORED)
    deltas = run_all(engine)
    assert [(d.index, d.text, d.token_ids, d.finish_reason) for d in deltas] == [
        (0, "", [], "length")
    ]
    output = request.output()
    assert output.finished
    assert output.prompt_logprobs == drawn.output().prompt_logprobs
    assert output.metrics.num_computed_tokens == num_prompt
    assert output.metrics.prefill_s is not None
    assert output.metrics.time_to_first_token_s is None
    assert engine.kv_usage().held_bytes == 0


def test_nothing_goes_through_the_head() -> None:
    model = ToyModel()
    engine = make_engine(model)
    rows = []
    run = model.run
    model.run = lambda batch: rows.append(len(batch.logit_rows)) or run(batch)  # type: ignore
    engine.add(PROMPT[:1], SamplingParams(max_tokens=0))
    engine.add(PROMPT[:5], SamplingParams(max_tokens=0))
    engine.add(PROMPT[:6], SamplingParams(max_tokens=1))
    run_all(engine)
    assert rows == [1]


def test_a_prompt_that_fills_the_context() -> None:
    engine = make_engine(ToyModel(), max_model_len=39)
    assert engine.add(PROMPT, SCORED).params.max_tokens == 0
    run_all(engine)
    assert engine.num_finished == 1
    with pytest.raises(PromptError, match="limit is 39 tokens; the prompt has 39 and 1 more"):
        engine.add(PROMPT, SamplingParams(max_tokens=1))
    with pytest.raises(PromptError, match="the prompt has 40 and 0 more"):
        engine.add([*PROMPT, 0], SCORED)


def test_every_sample_ends() -> None:
    engine = make_engine(ToyModel())
    request = engine.add(PROMPT[:5], SamplingParams(max_tokens=0, n=3))
    assert sorted(d.index for d in run_all(engine)) == [0, 1, 2]
    assert [o.finish_reason for o in request.output().outputs] == ["length"] * 3


def test_it_fills_the_prefix_cache() -> None:
    engine = make_engine(ToyModel(), prefix_caching=True)
    engine.add(PROMPT[:12], SamplingParams(max_tokens=0))
    run_all(engine)
    request = engine.add(PROMPT[:14], SamplingParams(max_tokens=2))
    run_all(engine)
    assert request.num_cached_tokens == 12
