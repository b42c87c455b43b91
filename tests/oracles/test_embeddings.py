"""Embeddings of real models against `transformers` on the dequantised weights."""

from __future__ import annotations

import numpy as np
import pytest
from dequantised import load_model

from headrace import LLM, PoolingParams
from headrace.formats.sources import resolve
from headrace.ops.kv import KVFormat
from small_program import batch_of, streams

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.models]

TEXTS = [
    "The sea is calm tonight, the tide is full, the moon lies fair upon the straits.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "Übermut tut selten gut. 早起きは三文の徳。",
]


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(((found - exact) ** 2).sum() / (exact**2).sum()))


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_hidden_values_are_as_close_as_logits(name: str) -> None:
    """Logits are held to llama.cpp's distance (test_recordings.py), and what the head reads cannot
    be further off than what it makes of it. The reference computes in float32: rounding only."""
    from headrace.ops.reference import ReferenceExecutor

    theirs = load_model(resolve(name))
    llm = LLM(name, max_model_len=256, kv_cache_dtype="f32")
    native = llm.engine.executor
    reference = ReferenceExecutor(llm.model.program)
    for text in TEXTS:
        ids = llm.encode(text)
        with torch.no_grad():
            hidden = theirs.base_model(torch.tensor([ids])).last_hidden_state
            logits = theirs.lm_head(hidden)[0].numpy()
        exact = hidden[0].numpy()
        rows = np.arange(len(ids), dtype=np.int32)
        errors = {}
        for kind, executor in (("native", native), ("reference", reference)):
            groups = len(executor.kv_groups)
            (stream,), blocks = streams((len(ids),), groups, 16, llm.model.program.vocab_size)
            stream.ids[:] = ids
            executor.allocate_kv([blocks] * groups, 16, KVFormat.F32)
            batch = batch_of([(stream, len(ids))], 16)
            of_logits = relative(executor.run(batch).copy(), logits)
            values = [part.copy() for part in executor.final_hidden(batch, rows)]
            errors[kind] = relative(np.concatenate(values), exact), of_logits
        print(name, errors)
        assert max(errors["reference"]) <= 1e-4
        # Logits have a large common part, which makes their relative error the smaller one.
        assert errors["native"][0] <= 2.5 * errors["native"][1]

        [output] = llm.embed([text], PoolingParams("mean", normalize=False))
        assert output.embedding is not None
        mean = exact.astype(np.float64).mean(axis=0)
        assert relative(output.embedding, mean) <= errors["native"][0]
