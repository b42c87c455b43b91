"""Perplexity of a text against the dense reference (itself checked against transformers)."""

from __future__ import annotations

import pytest

from headrace import LLM
from headrace.engine.perplexity import score_text
from headrace.errors import PromptError

pytestmark = [pytest.mark.models, pytest.mark.torch]

TEXT = "The river rises in the hills and runs for ninety miles before it meets the sea. " * 8


def test_the_score_is_the_mean_over_the_second_halves_of_the_chunks() -> None:
    import torch

    from headrace.ops.reference import ReferenceModel

    llm = LLM("smollm2-135m", max_model_len=65, max_num_seqs=1, kv_cache_dtype="f32")
    score = score_text(llm, TEXT, context=64)
    ids = llm.encode(TEXT, add_special=False)
    assert score.num_chunks == len(ids) // 64 >= 2
    chunks = [ids[i * 64 : (i + 1) * 64] for i in range(score.num_chunks)]
    reference = ReferenceModel(llm.model.program, torch.float32)
    nll = []
    for chunk, logits in zip(chunks, reference.logits(chunks), strict=True):
        logprobs = torch.log_softmax(logits.double(), dim=1)
        nll += [-float(logprobs[i - 1, chunk[i]]) for i in range(32, 64)]
    assert score.num_scored == len(nll)
    # Activations are rounded to int8 on the native path (docs/accuracy.md): a few hundredths.
    assert score.negative_logprob / len(nll) == pytest.approx(sum(nll) / len(nll), abs=0.03)


def test_a_text_shorter_than_a_chunk_is_refused() -> None:
    llm = LLM("smollm2-135m", max_model_len=65, max_num_seqs=1)
    with pytest.raises(PromptError, match="fewer than one chunk of 64"):
        score_text(llm, "Too short.", context=64)
