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
from headrace.engine.sizing import PoolPlan
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.ops.kv import KVFormat

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
