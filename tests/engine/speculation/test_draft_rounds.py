"""A draft model in the engine: every text is that of plain decoding, whatever the draft model is
like and however little memory it has; and when all is over, it holds nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from speculation.test_draft_model import GROUPS, PARAMS, Alternating, Worse
from toy import VOCAB, ToyModel, expected_tokens, make_engine, run_all

from headrace import LLM, SamplingParams
from headrace.engine.core import Engine
from headrace.engine.sizing import PoolPlan
from headrace.engine.speculation.choice import Speculative
from headrace.engine.speculation.draft_model import DraftModel


def toy_engine(
    groups: str, kind: type[ToyModel], draft_blocks: int, **sizes: Any
) -> tuple[Engine, DraftModel]:
    config = make_engine(ToyModel(GROUPS[groups]), **sizes).config
    pools = PoolPlan((draft_blocks,) * len(GROUPS[groups]), config.pools.block_bytes)
    draft = DraftModel(kind(GROUPS[groups]), replace(config, pools=pools), VOCAB)
    return make_engine(ToyModel(GROUPS[groups]), draft=draft, **sizes), draft


def is_empty(draft: DraftModel) -> bool:
    draft.memory.check()
    pools = draft.memory.manager.pools
    return all(pool.num_free + pool.num_reclaimable == pool.num_blocks for pool in pools)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("kind", [ToyModel, Worse])
@pytest.mark.parametrize("groups", GROUPS)
def test_texts_are_those_of_plain_decoding(groups: str, kind: type[ToyModel], keeps: bool) -> None:
    """Tiny pools on both sides, so that there are preemptions; aborts and pauses in between."""
    rng = random.Random(3)
    engine, draft = toy_engine(
        groups, kind, 9, max_num_seqs=6, budget=24, num_blocks=[24] * len(GROUPS[groups]),
        max_model_len=48, prefix_caching=keeps, eos_ids=frozenset({7}),
    )  # fmt: skip
    requests, aborted = [], set()
    for step in range(400):
        if step < 120 and rng.random() < 0.4:
            params = rng.choice(PARAMS).replace(
                max_tokens=rng.randint(9, 18),
                speculative=rng.choice(["draft", "draft", "off", "ngram"]),
                num_draft_tokens=rng.choice([None, 1, 3, 8]),
            )
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 24))]
            requests.append(engine.add(prompt, params))
        for request in requests:
            if rng.random() < 0.01 and not request.finished:
                engine.abort(request)
                aborted.add(request)
            elif rng.random() < 0.05:
                engine.pause(request)
            elif rng.random() < 0.3:
                engine.resume(request)
        engine.step()
    for request in requests:
        engine.resume(request)
    run_all(engine)
    assert engine.num_preemptions > 0
    assert engine.speculator.total.num_accepted > 30
    for request in requests:
        for generation in request.generations:
            want = expected_tokens(ToyModel(GROUPS[groups]), request, generation.index, 48)
            if request in aborted:
                want = want[: len(generation.token_ids)]
            assert generation.token_ids == want
    assert is_empty(draft)


def test_a_constraint_is_followed_on_the_drafted_path() -> None:
    texts = []
    for mode in ("off", "draft"):
        engine, draft = toy_engine("both", ToyModel, 60)
        params = SamplingParams(temperature=1, seed=2, max_tokens=30, speculative=mode)
        request = engine.add([1, 2, 3], params, constraint=Alternating(17))
        run_all(engine)
        assert request.generations[0].error is None
        texts.append(request.generations[0].token_ids)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 17
    assert engine.speculator.total.acceptance_rate == 1.0
    assert is_empty(draft)


def test_a_draft_model_that_breaks_harms_nobody() -> None:
    engine, draft = toy_engine("full", ToyModel, 60)
    model = draft._executor
    assert isinstance(model, ToyModel)
    params = SamplingParams(temperature=0, max_tokens=30, speculative="draft", num_draft_tokens=3)
    first = engine.add([1, 2], params)
    for _ in range(4):
        engine.step()
    model.fail_next = RuntimeError("broken")
    engine.step()
    drafted = engine.speculator.total.num_drafted
    run_all(engine)
    assert engine.speculator.total.num_drafted == drafted, "it is not asked again"
    assert first.generations[0].token_ids == expected_tokens(ToyModel(), first, 0, 96)
    second = engine.add([1, 2], params)
    run_all(engine)
    assert engine.speculator.total.num_drafted > drafted
    assert second.generations[0].token_ids == first.generations[0].token_ids
    assert is_empty(draft)


# ---- real models ------------------------------------------------------------------------------

TEXTS = ["def quicksort(items):\n", "The capital of France is", "1, 2, 3, 4, 5, 6,", "I am"]
REAL = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=8, n=2, max_tokens=12, repetition_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=16, logprobs=2, frequency_penalty=0.5),
]


def compare(target: str, draft: str, quantize: str | None, prompts: list[Any]) -> float:
    """REAL on the prompts, alone and together, plain and with drafts; the acceptance rate."""
    results = []
    for options in ({}, {"draft_model": draft, "draft_quantize": quantize, "num_draft_tokens": 3}):
        with LLM(target, max_model_len=1024, num_threads=2, **options) as llm:  # type: ignore[arg-type]
            outputs = llm.generate(prompts[:1], REAL[0])
            outputs += llm.generate(prompts[:1], REAL[1])
            outputs += llm.generate(prompts * 4, [p for p in REAL for _ in prompts])
            results.append(
                [
                    (c.text, c.token_ids, c.logprobs, c.finish_reason)
                    for o in outputs
                    for c in o.outputs
                ]
            )
            total = llm.engine.speculator.total
            if options:
                assert all(o.metrics.speculation is not None for o in outputs)
                drafter = llm.engine.speculator._drafters[Speculative.DRAFT]
                assert isinstance(drafter, DraftModel)
                assert is_empty(drafter)
    assert results[0] == results[1]
    assert total.num_accepted > 0
    assert total.acceptance_rate is not None
    return total.acceptance_rate


@pytest.mark.models
def test_smollm2_by_itself_in_fewer_bits() -> None:
    assert compare("smollm2-135m", "smollm2-135m", "q4_0", TEXTS) > 0.5


@pytest.mark.models
def test_a_grammar_is_followed_by_a_real_draft_model() -> None:
    schema = '{"type": "array", "items": {"enum": ["left", "right", 1, 2]}, "maxItems": 6}'
    params = [
        SamplingParams(temperature=t, seed=4, max_tokens=24, structured_outputs={"json": schema})  # type: ignore[arg-type]
        for t in (0, 1.0)
    ]
    texts = []
    for options in ({}, {"draft_model": "smollm2-135m", "num_draft_tokens": 4}):
        with LLM("smollm2-135m", max_model_len=256, num_threads=2, **options) as llm:  # type: ignore[arg-type]
            texts.append([o.outputs[0].text for o in llm.generate([TEXTS[2]] * 2, params)])
            total = llm.engine.speculator.total
    assert texts[0] == texts[1]
    assert texts[0][0].startswith("[")
    assert total.num_accepted > 4
    assert total.acceptance_rate == 1.0, "the same model under the same mask"


@pytest.mark.models
def test_gemma3_by_itself_in_fewer_bits_across_the_edge_of_its_window() -> None:
    """The windows of both models move on by what was kept, not by what was drafted (fault 14)."""
    long = " ".join(f"{i}: the mill turns and the water runs." for i in range(52))
    assert compare("gemma3-270m", "gemma3-270m", "q4_0", [long, *TEXTS[1:2]]) > 0.4


@pytest.mark.large
def test_the_half_b_drafts_for_the_one_and_a_half() -> None:
    """Fault 42."""
    assert compare("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", None, TEXTS) > 0.5
