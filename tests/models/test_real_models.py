"""The real models: our reference against `transformers` on the same GGUF file."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.formats import sources
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import LoadedModel, load

torch = pytest.importorskip("torch")


def ids(length: int, vocab: int) -> list[int]:
    return [(i * i * 31 + 7 * i + 1000) % min(vocab, 40_000) for i in range(length)]


def check_against_transformers(name: str, length: int, every: int) -> LoadedModel:
    """Logits of every `every`-th position of a prompt, float32 on both sides."""
    import gguf_oracle
    from headrace.ops.reference import ReferenceModel

    path = sources.resolve(name)
    model = load(open_checkpoint(path))
    prompt = ids(length, model.vocab_size)
    rows = list(range(every - 1, length, every))
    oracle = gguf_oracle.transformers_model(path)
    with torch.no_grad():
        hidden = oracle.model(torch.tensor([prompt])).last_hidden_state[0, rows]
        expected = oracle.lm_head(hidden)
    del oracle
    (actual,) = ReferenceModel(model, torch.float32).logits([prompt], rows=[rows])
    # Two float32 implementations with sums in different orders and, in transformers, rotary angles
    # in float32. A wrong layer, window edge or rotary base moves logits by their own size.
    error = (actual - expected).abs().max() / expected.std()
    print(f"{name}: max |Δlogit| = {float(error):.2e} standard deviations")
    assert error < 2e-4
    return model


@pytest.mark.models
def test_smollm2() -> None:
    model = check_against_transformers("smollm2-135m", 64, every=4)
    assert model.config.tied_embeddings


@pytest.mark.models
def test_gemma3_beyond_its_window() -> None:
    model = check_against_transformers("gemma3-270m", 560, every=70)
    assert model.config.tied_embeddings
    window, full = model.kv_groups[1], model.kv_groups[0]
    assert (window.window, len(window.layers), full.layers) == (512, 15, (5, 11, 17))


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_tied_files_load_with_and_without_a_repeated_head(name: str) -> None:
    checkpoint = open_checkpoint(sources.resolve(name))
    assert "output.weight" not in checkpoint.tensors
    head = {"output.weight": checkpoint.tensors["token_embd.weight"]}
    repeated = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, **head})
    for model in (load(checkpoint), load(repeated)):
        assert model.config.tied_embeddings
        assert model.warnings == ()
        assert "lm_head" not in model.weights


@pytest.mark.large
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_qwen(name: str) -> None:
    model = check_against_transformers(name, 64, every=4)
    assert not model.config.tied_embeddings  # these two files have a head of their own
