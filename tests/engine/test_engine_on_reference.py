"""The whole engine on the torch reference: greedy text equals plain recomputation.

Batched, chunked, preempted requests on paged keys and values of `ReferenceExecutor`, against
`ReferenceModel`, which computes every token's logits from position 0 and has no cache.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import tiny_models
from headrace.engine.config import EngineOptions, Machine, resolve
from headrace.engine.core import Engine, Vocabulary
from headrace.engine.params import SamplingParams
from headrace.engine.prefix.stamp import ModelIdentity
from headrace.engine.sizing import PoolPlan
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.ops.executor import Executor
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

NEW_TOKENS = 24


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_engine_on_torch_writes_what_recomputation_writes(name: str, tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceExecutor, ReferenceModel

    model = load(open_checkpoint(tiny_models.build(name, tmp_path, seed=9)))
    options = EngineOptions(
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=16,
        kv_cache_dtype="f32",
    )
    config = resolve(options, model.kv_groups, model.max_context, Machine.probe({}))
    # Too few blocks for all at once, so that somebody is preempted.
    blocks = (7,) * len(model.kv_groups)
    config = dataclasses.replace(config, pools=PoolPlan(blocks, config.pools.block_bytes))
    executor = ReferenceExecutor(model, torch.float64)
    engine = Engine(executor, Vocabulary(num_ids=tiny_models.VOCAB), config)
    prompts = [[(n * i * i + 5) % tiny_models.VOCAB for i in range(n)] for n in (40, 10, 30, 25)]
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [engine.add(prompt, params) for prompt in prompts]
    while engine.has_work:
        engine.step()
    assert [request.generations[0].error for request in requests] == [None] * 4
    assert sum(request.num_preemptions for request in requests) > 0

    reference = ReferenceModel(model, torch.float64, KVFormat.F32)
    for prompt, request in zip(prompts, requests, strict=True):
        text = list(request.generations[0].token_ids)
        assert len(text) == NEW_TOKENS
        # Every token of the text is the reference's choice after the tokens before it.
        before = range(len(prompt) - 1, len(prompt) + NEW_TOKENS - 1)
        (logits,) = reference.logits([prompt + text], rows=[before])
        assert logits.argmax(dim=1).tolist() == text


def test_prefixes_saved_on_torch_are_found_there_and_refused_by_the_native_path(
    tmp_path: Path, save_dir: Path
) -> None:
    from headrace.ops.reference import ReferenceExecutor

    model = load(open_checkpoint(tiny_models.build("gemma3", tmp_path, seed=9)))
    options = EngineOptions(max_model_len=128, max_num_seqs=2, kv_cache_dtype="f32")
    config = resolve(options, model.kv_groups, model.max_context, Machine.probe({}))

    def engine_on(executor: Executor) -> Engine:
        identity = ModelIdentity("tiny", "tiny", "")
        vocabulary = Vocabulary(num_ids=tiny_models.VOCAB)
        return Engine(executor, vocabulary, config, identity=lambda: identity)

    def text_of(engine: Engine) -> tuple[int, list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        request = engine.add([(7 * i + 3) % tiny_models.VOCAB for i in range(45)], params)
        while engine.has_work:
            engine.step()
        return request.num_cached_tokens, list(request.generations[0].token_ids)

    first, second = (engine_on(ReferenceExecutor(model, torch.float64)) for _ in range(2))
    cached, text = text_of(first)
    assert cached == 0
    assert first.cache.save(save_dir).reason is None
    assert second.cache.restore(save_dir).reason is None
    assert text_of(second) == text_of(first)
    assert text_of(first) == (32, text)  # the window is kept at the last block border of the prompt
    native = engine_on(NativeModel(model, max_tokens=512, max_requests=2, max_context=128))
    report = native.cache.restore(save_dir)
    assert report.num_nodes == 0
    assert "other arithmetic (reference/" in str(report.reason)
