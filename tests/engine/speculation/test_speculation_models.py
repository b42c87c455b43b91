"""Speculative = plain on the real models, bit by bit: tokens, text, logprobs, ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.engine.config import EngineOptions
from headrace.engine.llm import LLM
from headrace.engine.model import build_engine, open_model
from headrace.engine.outputs import RequestOutput
from headrace.engine.params import SamplingParams
from headrace.structured.spec import StructuredOutputs

pytestmark = pytest.mark.models

SMOL, GEMMA = "smollm2-135m", "gemma3-270m"
CODE = "def area(width, height):\n    return width * height\n\n\n"
#: They repeat themselves, so that n-grams are found.
PROMPTS = [
    CODE * 3 + "def area(",
    "one, two, three, one, two, three, one, two,",
    "The sea is blue. The sky is blue. The sea is",
    '{"name": "Ann", "age": 3}\n{"name": "Bob", "age": 4}\n{"name": "Cid",',
]
GREEDY = SamplingParams(temperature=0, max_tokens=48, logprobs=2)
SEEDED = GREEDY.replace(temperature=0.8, seed=11)


@pytest.fixture(scope="module", params=[SMOL, GEMMA])
def llm(request: pytest.FixtureRequest) -> LLM:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_DEBUG_INVARIANTS", "1")
        return LLM(request.param, max_model_len=1024, enable_prefix_caching=False)


def fields(output: RequestOutput) -> list[tuple[Any, ...]]:
    return [
        (o.token_ids, o.text, o.logprobs, o.cumulative_logprob, o.finish_reason, o.stop_reason)
        for o in output.outputs
    ]


def check(llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams]) -> int:
    """All at once, and each alone; how many drafts were accepted."""
    plain = [fields(output) for output in llm.generate(prompts, params)]
    guessing = [p.replace(speculative="ngram", num_draft_tokens=5) for p in params]
    outputs = llm.generate(prompts, guessing)
    assert [fields(output) for output in outputs] == plain
    for prompt, p, want in zip(prompts, guessing, plain, strict=True):
        assert fields(llm.generate(prompt, p)[0]) == want
    accounts = [output.metrics.speculation for output in outputs]
    return sum(account.num_accepted for account in accounts if account is not None)


def test_greedy_and_seeded_texts_are_those_of_plain_decoding(llm: LLM) -> None:
    """Both in one batch, with different lengths."""
    params = [GREEDY, SEEDED, GREEDY.replace(max_tokens=20), SEEDED.replace(seed=3, n=2)]
    assert check(llm, PROMPTS, params) > 30


def test_state_of_sampling_moves_by_kept_tokens(llm: LLM) -> None:
    person = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    people = {"type": "array", "items": person, "minItems": 2, "maxItems": 3}
    params = [
        SEEDED.replace(frequency_penalty=0.3, repetition_penalty=1.05),
        GREEDY.replace(stop=[" three", "blue"], min_tokens=9),
        SEEDED.replace(temperature=0.4, stop=["sea is blue", "\n\n\n"], top_p=0.9, top_k=30),
        GREEDY.replace(structured_outputs=StructuredOutputs(json=people), max_tokens=80),
    ]
    assert check(llm, PROMPTS, params) > 5


def test_seeds_still_differ(llm: LLM) -> None:
    params = [
        SamplingParams(temperature=1, seed=seed, max_tokens=16, speculative="ngram")
        for seed in range(10)
    ]
    texts = {o.outputs[0].text for o in llm.generate([PROMPTS[1]] * 10, params)}
    assert len(texts) >= 2


def test_greedy_and_sampled_requests_share_verify_steps(llm: LLM) -> None:
    """T = 0 next to T = 0.8: finite logits, and counts that are counts."""
    params = [p.replace(speculative="ngram", num_draft_tokens=4) for p in (GREEDY, SEEDED) * 2]
    for output in llm.generate(PROMPTS, params):
        account = output.metrics.speculation
        assert account is not None
        assert output.outputs[0].finish_reason in ("stop", "length")
        assert 0 <= account.num_accepted <= account.num_tested <= account.num_drafted
        assert output.outputs[0].logprobs is not None
        for entry in output.outputs[0].logprobs:
            assert all(np.isfinite(score.logprob) for score in entry.values())


def test_twenty_greedy_texts_in_f32() -> None:
    llm = LLM(SMOL, max_model_len=512, kv_cache_dtype="f32")
    prompts = [f"{CODE}# {i}\n{CODE}def volume{i}(" for i in range(20)]
    params = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
    plain = llm.generate(prompts, params)
    guessed = llm.generate(prompts, params.replace(speculative="ngram"))
    assert [o.outputs[0].token_ids for o in guessed] == [o.outputs[0].token_ids for o in plain]
    accounts = [o.metrics.speculation for o in guessed]
    assert sum(account.num_accepted for account in accounts if account is not None) > 200


def test_a_verify_step_across_the_window_edge_reads_a_full_cache() -> None:
    """Eight rows at once where the first still sees what the last does not."""
    model = open_model(GEMMA)
    window = min(g.window for g in model.program.kv_groups if g.window)
    llm = LLM(model, max_model_len=window + 192, max_num_seqs=2)
    words = llm.encode("again and again the wheel went round, and round it went. ")
    ids = (words * (window // len(words) + 1))[: window - 20]
    params = GREEDY.replace(max_tokens=64, ignore_eos=True)
    plain = llm.generate({"prompt_token_ids": ids}, params)[0]
    guessed = llm.generate(
        {"prompt_token_ids": ids}, params.replace(speculative="ngram", num_draft_tokens=7)
    )[0]
    assert fields(guessed) == fields(plain)
    account = guessed.metrics.speculation
    assert account is not None
    assert account.num_accepted > 20
    unfreed = build_engine(
        model, EngineOptions(max_model_len=window + 192, max_num_seqs=2, kv_allocator="contiguous")
    )
    request = unfreed.add(ids, params)
    while unfreed.has_work:
        unfreed.step()
    assert fields(request.output()) == fields(guessed)
