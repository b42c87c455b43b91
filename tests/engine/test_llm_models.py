"""LLM on the real models: everything that may not change a text, compared bit by bit.

Logprobs are compared as floats with ==: they come from the logits' bits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.engine.llm import LLM
from headrace.engine.model import native_executor
from headrace.engine.outputs import CompletionOutput, RequestOutput
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.errors import ModelSourceError, PromptError, UsageError
from headrace.ops.native import NativeModel

pytestmark = pytest.mark.models

SMOL, GEMMA = "smollm2-135m", "gemma3-270m"
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=2)
PROMPTS = [
    "The sea is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n    ",
    "List three colours: ",
    "Water boils at",
]


@pytest.fixture(scope="module", autouse=True)
def checked_invariants() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_DEBUG_INVARIANTS", "1")
        yield


@pytest.fixture(scope="module")
def smol() -> LLM:
    llm = LLM(SMOL, max_model_len=1024, enable_prefix_caching=False)  # everything is computed
    assert llm.config.debug_invariants
    return llm


@pytest.fixture(scope="module")
def gemma() -> LLM:
    return LLM(GEMMA, max_model_len=2048, enable_prefix_caching=False)


def like(llm: LLM, **options: Any) -> LLM:
    """Another engine over the same model and packed weights."""
    native = llm.engine.executor
    assert isinstance(native, NativeModel)
    return LLM(llm.model, make_executor=partial(native_executor, weights=native.weights), **options)


def facts(output: CompletionOutput) -> tuple[object, ...]:
    assert output.logprobs is not None
    floats = [[(i, e.logprob) for i, e in entry.items()] for entry in output.logprobs]
    return output.token_ids, floats, output.text, output.finish_reason


def one(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> CompletionOutput:
    [result] = llm.generate([prompt], params)
    assert result.finished
    return result.outputs[0]


def ids_of(llm: LLM, length: int) -> list[int]:
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun. " * 60
    return llm.encode(text)[:length]


def test_row_5_two_equal_prompts(smol: LLM) -> None:
    ids = ids_of(smol, 40)  # 2.5 blocks
    a, b = smol.generate([ids, ids], GREEDY)
    assert facts(a.outputs[0]) == facts(b.outputs[0]) == facts(one(smol, ids))


@pytest.mark.parametrize("count", [2, 3, 8, 17])
def test_row_23_batches(smol: LLM, count: int) -> None:
    alone = facts(one(smol, PROMPTS[0]))
    prompts = [PROMPTS[i % len(PROMPTS)] + " " * (i // 5) for i in range(count)]
    results = smol.generate(prompts, GREEDY)
    assert [r.prompt for r in results] == prompts
    assert facts(results[0].outputs[0]) == alone


def test_row_28_seeds(smol: LLM) -> None:
    seeded = SamplingParams(temperature=1, seed=7, max_tokens=8, logprobs=1)
    alone = facts(one(smol, PROMPTS[0], seeded))
    free = SamplingParams(temperature=1, max_tokens=8, logprobs=1)
    results = smol.generate([PROMPTS[0], *PROMPTS[:5], *PROMPTS[:2]], [seeded, *[free] * 7])
    assert facts(results[0].outputs[0]) == alone
    assert facts(results[1].outputs[0]) != alone
    assert results[0].seed == 7
    again = one(smol, PROMPTS[0], free.replace(seed=results[1].seed))
    assert facts(again) == facts(results[1].outputs[0])


@pytest.mark.parametrize("name", [SMOL, GEMMA])
def test_rows_16_17_chunks(name: str, smol: LLM, gemma: LLM) -> None:
    whole = smol if name == SMOL else gemma
    scored = GREEDY.replace(max_tokens=2, prompt_logprobs=0)
    prompts = [ids_of(whole, length) for length in (31, 32, 33, 64, 65)]

    def all_facts(llm: LLM) -> list[object]:
        return [(facts(r.outputs[0]), r.prompt_logprobs) for r in llm.generate(prompts, scored)]

    want = all_facts(whole)
    for chunk in (1, 7, 16, 17, 32) if name == SMOL else (17,):
        llm = like(
            whole, max_model_len=128, max_num_seqs=8, max_num_batched_tokens=32,
            max_prefill_tokens=chunk,
        )  # fmt: skip
        assert all_facts(llm) == want, f"chunk {chunk}"


def test_row_16_a_long_prompt(smol: LLM) -> None:
    ids = ids_of(smol, 700)
    want = facts(one(like(smol, max_model_len=1024, max_num_batched_tokens=1024), ids))
    for chunk in (512, 161, 48):
        llm = like(smol, max_model_len=1024, max_prefill_tokens=chunk)
        assert facts(one(llm, ids)) == want, f"chunk {chunk}"


def test_row_22_abort_in_every_state(smol: LLM) -> None:
    llm = like(smol, max_model_len=512, max_num_seqs=2, max_num_batched_tokens=16)
    keep = llm.stream(PROMPTS[1], GREEDY)
    prefilling = llm.stream(ids_of(llm, 100), GREEDY)
    queued = llm.stream(PROMPTS[2], GREEDY)
    next(keep)
    assert 0 < prefilling.request.generations[0].sequence.num_computed_tokens < 100
    queued.abort()
    prefilling.abort()
    assert [d.finish_reason for d in queued] == ["abort"]
    assert [d.finish_reason for d in prefilling] == ["abort"]
    decoding = llm.stream(PROMPTS[3], GREEDY)
    next(decoding)
    decoding.close()
    assert list(decoding) == []
    list(keep)
    keep.abort()  # at the end: nothing happens
    assert facts(keep.result.outputs[0]) == facts(one(smol, PROMPTS[1]))
    assert llm.engine.manager.available_counts == tuple(
        p.num_blocks for p in llm.engine.manager.pools
    )


def test_allocators_and_policies_agree(smol: LLM) -> None:
    want = [facts(r.outputs[0]) for r in smol.generate(PROMPTS, GREEDY)]
    for options in (
        {"kv_allocator": "contiguous"},
        {"kv_allocator": "growing"},
        {"kv_allocator": "none"},
        {"batching": "static"},
        {"block_size": 64},
        {"num_threads": 1},
    ):
        llm = like(smol, max_model_len=64, max_num_seqs=3, **options)
        assert [facts(r.outputs[0]) for r in llm.generate(PROMPTS, GREEDY)] == want, options


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_number_formats_of_the_cache_change_logits_only_a_little(smol: LLM, dtype: str) -> None:
    llm = like(smol, max_model_len=64, kv_cache_dtype=dtype)
    a, b = one(smol, PROMPTS[1]).logprobs, one(llm, PROMPTS[1]).logprobs
    assert a is not None
    assert b is not None
    first_a, first_b = next(iter(a[0].values())).logprob, next(iter(b[0].values())).logprob
    assert first_a == pytest.approx(first_b, abs=0.1)
    assert first_a != first_b


def test_preemption_does_not_change_the_text(smol: LLM) -> None:
    params = GREEDY.replace(max_tokens=40, ignore_eos=True)
    block_bytes = smol.config.pools.block_bytes[0]
    llm = like(smol, max_model_len=64, max_num_seqs=4, kv_cache_memory=8 * block_bytes)
    results = llm.generate(PROMPTS[:4], params)
    assert sum(r.metrics.num_preemptions for r in results) > 0
    roomy = smol.generate(PROMPTS[:4], params)
    assert [facts(r.outputs[0]) for r in results] == [facts(r.outputs[0]) for r in roomy]


def test_samples_of_one_request(smol: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=8, logprobs=1)
    [result] = smol.generate([PROMPTS[1]], params)
    assert [o.index for o in result.outputs] == [0, 1, 2]
    assert len({o.text for o in result.outputs}) == 3
    assert result.metrics.num_computed_tokens < 2 * len(result.prompt_token_ids) + 3 * 8
    assert facts(result.outputs[0]) == facts(one(smol, PROMPTS[1], params.replace(n=1)))


def test_a_stream_joined_is_the_whole_text(smol: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=24, n=2)
    stream = smol.stream(PROMPTS[1], params)
    deltas = list(stream)
    [whole] = smol.generate(PROMPTS[1], params)
    for index in (0, 1):
        mine = [d for d in deltas if d.index == index]
        assert "".join(d.text for d in mine) == whole.outputs[index].text
        assert [t for d in mine for t in d.token_ids] == whole.outputs[index].token_ids
        assert [d.finish_reason is not None for d in mine] == [False] * (len(mine) - 1) + [True]


def test_two_streams_take_turns(smol: LLM) -> None:
    a, b = smol.stream(PROMPTS[0], GREEDY), smol.stream(PROMPTS[1], GREEDY)
    text_a = next(a).text
    text_b = "".join(d.text for d in b)
    text_a += "".join(d.text for d in a)
    assert (text_a, text_b) == (one(smol, PROMPTS[0]).text, one(smol, PROMPTS[1]).text)


def test_a_dropped_stream_does_not_run_on(smol: LLM) -> None:
    stream = smol.stream(PROMPTS[0], GREEDY.replace(max_tokens=500))
    next(stream)
    request = stream.request
    del stream
    one(smol, PROMPTS[1])
    assert request.output().outputs[0].finish_reason == "abort"
    assert not smol.engine.has_work


def test_bad_calls_are_named(smol: LLM) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    with pytest.raises(UsageError, match="A model is a name or a path, not int"):
        LLM(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"unknown chat option 'enable_thinking' .* variables="):
        smol.chat(hello, GREEDY, enable_thinking=True)
    assert not smol.engine.has_work


def test_a_path_is_a_model(smol: LLM) -> None:
    with LLM(smol.model.path, max_model_len=16, max_num_seqs=1) as llm:
        assert llm.generate("a", GREEDY.replace(max_tokens=1))[0].finished


def test_a_text_beyond_any_context_is_not_tokenized(
    smol: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> list[int]:
        raise AssertionError("the text was tokenized")

    text = "word " * (4 * smol.config.max_model_len * smol.tokenizer.max_token_bytes // 5 + 1)
    monkeypatch.setattr(smol, "encode", never)
    with pytest.raises(PromptError, match=f"limit is {smol.config.max_model_len} tokens"):
        smol.generate(text, GREEDY)


def test_a_dropped_stream_leaves_no_deltas_behind(smol: LLM) -> None:
    stream = smol.stream(PROMPTS[0], GREEDY)
    request = stream.request
    one(smol, PROMPTS[1].replace(" ", "  "))  # both run; the stream's deltas wait for a reader
    while not request.finished:
        smol._step()
    assert request.request_id in smol._streams
    del stream
    one(smol, PROMPTS[1])
    assert request.request_id not in smol._streams


def test_threads_share_the_engine(smol: LLM) -> None:
    want = [one(smol, p).text for p in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda p: one(smol, p).text, PROMPTS))
    assert texts == want


def test_prompt_logprobs(smol: LLM) -> None:
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    [result] = smol.generate([PROMPTS[1]], scored)
    entries = result.prompt_logprobs
    assert entries is not None
    assert len(entries) == len(result.prompt_token_ids)
    assert entries[0] is None
    # the same number as when the token is drawn
    cut = result.prompt_token_ids[:-1]
    drawn = one(smol, cut, GREEDY.replace(max_tokens=1, logprobs=20))
    last = entries[-1]
    assert last is not None
    assert drawn.logprobs is not None
    top = [i for i, e in last.items() if e.rank in (1, 2)]
    assert {i: last[i].logprob for i in top} == {i: drawn.logprobs[0][i].logprob for i in top}


def test_row_15_windows_are_freed_and_global_layers_still_see_the_start(gemma: LLM) -> None:
    ids = ids_of(gemma, 900)
    params = GREEDY.replace(max_tokens=3)
    stream = gemma.stream(ids, params)
    next(stream)
    blocks = stream.request.generations[0].sequence.blocks
    assert blocks is not None
    full, window = blocks.first_columns
    assert full == 0
    assert window == (900 - 512 + 1) // 16
    list(stream)
    kept = like(gemma, max_model_len=1024, kv_allocator="contiguous", max_num_seqs=1)
    assert facts(stream.result.outputs[0]) == facts(one(kept, ids, params))
    changed = [*ids[:5], ids[5] + 1, *ids[6:]]
    assert facts(one(gemma, changed, params)) != facts(stream.result.outputs[0])


def test_row_49_the_context_limit(smol: LLM) -> None:
    llm = like(smol, max_model_len=64)
    free = SamplingParams(temperature=0, max_tokens=None)
    assert len(one(llm, ids_of(llm, 63), free).token_ids) == 1
    [result] = llm.generate([ids_of(llm, 63)])  # no parameters: cut to what is left
    assert len(result.outputs[0].token_ids) == 1
    [result] = llm.generate([ids_of(llm, 63)], SamplingParams(temperature=0))
    assert len(result.outputs[0].token_ids) == 1
    for length in (64, 65, 500):
        with pytest.raises(PromptError, match=f"limit is 64 tokens; the prompt has {length} and"):
            llm.generate([[1, 2, 3], ids_of(llm, length)], free)
    with pytest.raises(PromptError, match="has 63 and 2 more"):
        llm.generate([ids_of(llm, 63)], free.replace(max_tokens=2))
    assert not llm.engine.has_work


def test_row_50_empty_prompts(smol: LLM) -> None:
    assert smol.tokenizer.encode("") == []
    nothing: list[Any] = ["", [""], [[]], {"prompt_token_ids": []}]
    for empty in nothing:
        with pytest.raises(PromptError, match="empty"):
            smol.generate(empty, GREEDY)
    assert smol.generate([], GREEDY) == []
    with pytest.raises(PromptError, match="empty"):
        smol.chat([], GREEDY)
    [result] = smol.chat([{"role": "user", "content": ""}], GREEDY)
    assert result.outputs[0].finish_reason in ("stop", "length")
    assert one(smol, PROMPTS[0]).finish_reason == "length"


def test_row_82_every_end_has_a_reason(smol: LLM) -> None:
    early = smol.chat([{"role": "user", "content": "Say hi."}], GREEDY.replace(max_tokens=60))
    output = early[0].outputs[0]
    if (
        output.finish_reason == "stop"
    ):  # an end of text is the last id, visible, and not in the text
        assert output.token_ids[-1] in smol.tokenizer.eos_ids
        assert "<|im_end|>" not in output.text
    forced = SamplingParams(
        temperature=0, max_tokens=8, allowed_token_ids=[smol.tokenizer.eos_ids[0]], trace=3
    )
    output = one(smol, PROMPTS[0], forced)
    assert (output.finish_reason, output.stop_reason, output.text) == ("stop", None, "")
    assert output.trace is not None
    assert output.trace[0].token == smol.tokenizer.eos_ids[0]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="Did you mean max_model_len"):
        LLM(SMOL, max_modellen=5)
    with pytest.raises(ModelSourceError, match="smollm2-135m"):
        LLM("smollm2-135n")
    with pytest.raises(UsageError, match="kv_cache_dtype"):
        LLM(SMOL, kv_cache_dtype="int8")


def test_nothing_of_torch_is_loaded() -> None:
    code = (
        "import sys; from headrace.engine.llm import LLM;"
        f"LLM({SMOL!r}).generate('a'); print('torch' in sys.modules)"
    )
    source = Path(headrace.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", [SMOL, GEMMA])
def test_embeddings_have_the_same_bits_however_they_are_computed(
    name: str, request: pytest.FixtureRequest
) -> None:
    llm: LLM = request.getfixturevalue("smol" if name == SMOL else "gemma")
    prompts: list[Any] = [*PROMPTS, {"prompt_token_ids": ids_of(llm, 150)}]
    alone = {
        pooling: [vector_of(llm.embed([p], pooling)[0]) for p in prompts]
        for pooling in (PoolingParams(), PoolingParams("last", normalize=False))
    }
    for pooling, vectors in alone.items():
        assert len(set(vectors)) == len(prompts)
        assert [vector_of(o) for o in llm.embed(prompts * 5, pooling)] == vectors * 5
    for options in (
        {"max_num_batched_tokens": 37, "max_num_seqs": 3},
        {"kv_allocator": "contiguous", "num_threads": 1},
        {"kv_allocator": "none"},
    ):
        other = like(llm, max_model_len=1024, **options)
        for pooling, vectors in alone.items():
            assert [vector_of(o) for o in other.embed(prompts, pooling)] == vectors, options


def vector_of(output: RequestOutput) -> bytes:
    assert output.embedding is not None
    assert np.isfinite(output.embedding).all()
    return output.embedding.tobytes()


def test_embeddings_between_running_texts(smol: LLM) -> None:
    """In the same steps as prompts and decodes, whose tokens do not change either."""
    params = GREEDY.replace(max_tokens=20)
    [plain] = smol.generate(["The sea is"], params)
    [vector] = smol.embed(["Once upon a time, in a small village,"])
    with smol.stream("The sea is", params) as stream:
        next(stream)
        [between] = smol.embed(["Once upon a time, in a small village,"])
        list(stream)
    assert facts(stream.result.outputs[0]) == facts(plain.outputs[0])
    assert vector_of(between) == vector_of(vector)
    assert between.metrics.num_computed_tokens == len(between.prompt_token_ids)
    with pytest.raises(UsageError, match="pooling is PoolingParams"):
        smol.embed(["a"], GREEDY)  # type: ignore[arg-type]
