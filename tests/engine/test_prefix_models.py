"""The prefix tree on real models, on and off: the same ids and the same floats, and really used.

Faults that users met elsewhere, by row: 1, 2, 3, 5, 20. Logprobs are compared as floats with ==:
they come from the logits' bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from headrace.engine.llm import LLM
from headrace.engine.model import native_executor
from headrace.engine.outputs import CompletionOutput, RequestOutput
from headrace.engine.params import SamplingParams
from headrace.ops.native import NativeModel

pytestmark = pytest.mark.models

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=5, max_tokens=16, logprobs=2)
MODELS = ["smollm2-135m", "gemma3-270m"]


class Pair:
    """An engine with the tree and one without, over the same packed weights."""

    def __init__(self, name: str) -> None:
        self.tree = LLM(name, max_model_len=2048, max_num_seqs=16)
        native = self.tree.engine.executor
        assert isinstance(native, NativeModel)
        self.cold = LLM(
            self.tree.model,
            make_executor=partial(native_executor, weights=native.weights),
            max_model_len=2048,
            max_num_seqs=16,
            enable_prefix_caching=False,
        )

    def ids(self, length: int, start: int = 0) -> list[int]:
        lines = [f"{n}. The mill takes {n * 7 % 90} sacks of corn a day.\n" for n in range(200)]
        return self.tree.encode("".join(lines[start:]))[:length]


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_DEBUG_INVARIANTS", "1")
        yield Pair(request.param)


@pytest.fixture(autouse=True)
def empty(pair: Pair) -> None:
    pair.tree.clear_prefix_cache()


def facts(output: CompletionOutput) -> tuple[object, ...]:
    assert output.logprobs is not None
    floats = [[(i, e.logprob) for i, e in entry.items()] for entry in output.logprobs]
    return output.token_ids, floats, output.text, output.finish_reason


def one(llm: LLM, ids: list[int], params: SamplingParams) -> RequestOutput:
    [result] = llm.generate([ids], params)
    return result


def test_row_1_eight_copies_of_a_300_token_prompt(pair: Pair) -> None:
    prompt, params = pair.ids(300), GREEDY.replace(max_tokens=64)
    want = facts(one(pair.cold, prompt, params).outputs[0])
    results = pair.tree.generate([prompt] * 8, params)
    assert [facts(r.outputs[0]) for r in results] == [want] * 8
    assert sum(r.num_cached_tokens >= 288 for r in results) == 7


@pytest.mark.parametrize(
    ("length", "params"), [(16, SEEDED), (33, GREEDY), (128, SEEDED), (527, GREEDY), (640, SEEDED)]
)
def test_row_2_a_hit_is_the_miss(pair: Pair, length: int, params: SamplingParams) -> None:
    prompt = pair.ids(length)
    miss, hit = (one(pair.tree, prompt, params) for _ in range(2))
    assert miss.num_cached_tokens == 0
    assert hit.num_cached_tokens >= (length - 1) // 16 * 16
    assert facts(hit.outputs[0]) == facts(miss.outputs[0])
    assert facts(hit.outputs[0]) == facts(one(pair.cold, prompt, params).outputs[0])


def test_row_3_prompt_logprobs_after_a_hit(pair: Pair) -> None:
    prompt, params = pair.ids(70), GREEDY.replace(max_tokens=2, prompt_logprobs=1)
    one(pair.tree, prompt, GREEDY)
    first, second = (one(pair.tree, prompt, params) for _ in range(2))
    assert second.prompt_logprobs == first.prompt_logprobs
    assert second.prompt_logprobs == one(pair.cold, prompt, params).prompt_logprobs
    assert second.prompt_logprobs is not None
    assert len(second.prompt_logprobs) == 70
    assert second.prompt_logprobs[0] is None
    assert "prompt logprobs" in (second.metrics.cache_note or "")


def test_row_5_two_and_a_half_blocks_twice_in_one_step(pair: Pair) -> None:
    prompt = pair.ids(40)
    a, b = pair.tree.generate([prompt, prompt], GREEDY)
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 32)
    want = facts(one(pair.cold, prompt, GREEDY).outputs[0])
    assert facts(a.outputs[0]) == facts(b.outputs[0]) == want


def test_row_20_a_cut_stream_leaves_its_prompt(pair: Pair) -> None:
    prompt = pair.ids(130)
    with pair.tree.stream({"prompt_token_ids": prompt}, GREEDY.replace(max_tokens=60)) as stream:
        for _ in range(20):
            next(stream)
    turn = prompt + pair.ids(20, start=50)
    result = one(pair.tree, turn, GREEDY)
    assert result.num_cached_tokens >= 130 - 16
    assert facts(result.outputs[0]) == facts(one(pair.cold, turn, GREEDY).outputs[0])


def test_many_requests_on_one_prefix_in_chunks(pair: Pair) -> None:
    shared = pair.ids(600)
    prompts = [shared + pair.ids(5 + 3 * i, start=90 + i) for i in range(7)]
    params = [(GREEDY, SEEDED)[i % 2].replace(max_tokens=6) for i in range(7)]
    want = [facts(r.outputs[0]) for r in pair.cold.generate(prompts, params)]
    results = pair.tree.generate(prompts, params)
    assert [facts(r.outputs[0]) for r in results] == want
    assert sum(r.num_cached_tokens for r in results) > 4 * 500


def test_a_conversation_reuses_its_history(pair: Pair) -> None:
    session = pair.tree.session()
    questions = ["Name a colour.", "And another one?", "Thanks!"]
    results = [session.chat(q, GREEDY.replace(max_tokens=12)) for q in questions]
    for i, result in enumerate(results):
        messages = session.messages[: 2 * i + 1]
        [cold] = pair.cold.chat(messages, GREEDY.replace(max_tokens=12))
        assert facts(cold.outputs[0]) == facts(result.outputs[0])
    assert results[0].num_cached_tokens == 0
    for before, after in pairwise(results):
        assert len(before.prompt_token_ids) <= after.num_cached_tokens
        assert after.num_cached_tokens < len(after.prompt_token_ids)
    manager = pair.tree.engine.manager
    assert manager.available_counts == tuple(p.num_blocks for p in manager.pools)


def test_salts_keep_prompts_apart(pair: Pair) -> None:
    prompts = [{"prompt_token_ids": pair.ids(70), "cache_salt": salt} for salt in ("a", "b", "a")]
    cached = [pair.tree.generate([p], GREEDY)[0].num_cached_tokens > 0 for p in prompts]
    assert cached == [False, False, True]
