"""Row 36 on a file: the head has more rows than the tokenizer has ids, and they are never sampled.

The file is padded for the purpose: 25 rows of the head stand for no token, and are scaled up so
that they hold the largest logits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace import LLM, SamplingParams
from tiny_models import EOS, VOCAB, build

pytestmark = pytest.mark.torch

NUM_IDS = EOS + 1


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    from safetensors.numpy import load_file, save_file

    directory = tmp_path_factory.mktemp("padded")
    build("llama", directory)
    file = Path(directory) / "model.safetensors"
    tensors = load_file(file)
    head = tensors["lm_head.weight"]
    assert head.shape[0] == VOCAB > NUM_IDS
    head[NUM_IDS:] *= 50
    save_file(tensors, file, metadata={"format": "pt"})
    return LLM(str(directory), max_model_len=256, max_num_seqs=50, kv_cache_memory="64MiB")


def test_ids_of_padded_rows_are_never_sampled(padded: LLM) -> None:
    params = SamplingParams(temperature=5.0, max_tokens=200, ignore_eos=True, n=10, logprobs=0)
    prompts = [{"prompt_token_ids": [65 + i]} for i in range(5)]
    drawn = [
        token
        for output in padded.generate(prompts, params)
        for sample in output.outputs
        for token in sample.token_ids
    ]
    assert len(drawn) == 10_000
    assert max(drawn) < NUM_IDS
    assert len(np.unique(drawn)) > NUM_IDS // 2


def test_padded_ids_in_a_prompt_are_refused(padded: LLM) -> None:
    from headrace.errors import PromptError

    with pytest.raises(PromptError, match=str(NUM_IDS)):
        padded.generate([{"prompt_token_ids": [NUM_IDS]}], SamplingParams(max_tokens=1))
