"""The model in training against the reference interpreter, in float64: values and gradients."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from training_models import llama, random_batch

from headrace.errors import ModelFileError, UsageError
from headrace.lab.training.model import Trainee
from headrace.lab.training.objective import cross_entropy
from headrace.lab.training.text import END, train_tokenizer
from headrace.ops.reference import ReferenceModel

pytestmark = pytest.mark.torch

#: One model per kind of attention and of family.
MODELS = {
    "MHA": llama(num_key_value_heads=4),
    "GQA": llama(),
    "MQA": llama(num_key_value_heads=1, tie_word_embeddings=False),
    "window": llama(model_type="mistral", sliding_window=4),
    "biases": llama(model_type="qwen2"),
    "QK norm": llama(model_type="qwen3"),
    "soft cap": llama(
        model_type="gemma3_text",
        query_pre_attn_scalar=6,
        final_logit_softcapping=3.0,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention"],
    ),
}


def reference_loss(model: Trainee, batch) -> torch.Tensor:
    """Cross entropy by ReferenceModel on the same parameters."""
    reference = ReferenceModel(model.loaded(), torch.float64, overrides=model.parameters)
    logits = torch.cat(reference.logits([list(map(int, row)) for row in batch.tokens]))
    targets = torch.from_numpy(batch.targets).reshape(-1)
    return torch.nn.functional.cross_entropy(logits, targets)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_the_references(name):
    model = Trainee(MODELS[name], seed=1, dtype=torch.float64)
    batch = random_batch(2)
    found = cross_entropy(model, batch)
    found.backward()
    gradients = {n: p.grad.clone() for n, p in model.parameters.items()}
    for p in model.parameters.values():
        p.grad = None
    expected = reference_loss(model, batch)
    expected.backward()
    assert abs(float((found - expected).detach())) < 1e-12
    for n, p in model.parameters.items():
        assert float(p.grad.abs().max()) > 0, f"{n} takes no part"
        assert torch.allclose(gradients[n], p.grad, rtol=1e-9, atol=1e-12), n


def test_gradients_are_finite_differences():
    model = Trainee(llama(), seed=3, dtype=torch.float64)
    batch = random_batch(4)
    cross_entropy(model, batch).backward()
    rng = np.random.default_rng(5)
    step = 1e-5
    with torch.no_grad():
        for name, p in model.parameters.items():
            direction = torch.from_numpy(rng.standard_normal(p.shape))
            slope = float((p.grad * direction).sum())
            p += step * direction
            above = float(cross_entropy(model, batch))
            p -= 2 * step * direction
            below = float(cross_entropy(model, batch))
            p += step * direction
            measured = (above - below) / (2 * step)
            assert measured == pytest.approx(slope, rel=1e-5, abs=1e-8), name


def test_in_float32_it_is_within_rounding_of_the_reference():
    model = Trainee(llama(), seed=6)
    batch = random_batch(7)
    with torch.no_grad():
        found = model.logits(torch.from_numpy(batch.tokens))
        (expected, *_) = ReferenceModel(model.loaded()).logits([batch.tokens[0].tolist()])
    assert torch.allclose(found[: len(expected)].double(), expected, rtol=0, atol=1e-5)


def test_a_saved_model_is_the_model(tmp_path: Path):
    from headrace.formats.checkpoint import open_checkpoint
    from headrace.formats.tokenizer_load import load_tokenizer
    from headrace.models.load import load

    tokenizer = train_tokenizer(["the cat sat on the mat, the rat sat on the cat"], 270)
    model = Trainee(llama(vocab_size=270), seed=8)
    model.save(tmp_path / "model", tokenizer.to_str(), eos=END)
    checkpoint = open_checkpoint(tmp_path / "model")
    found = load(checkpoint)
    own = model.loaded()
    assert found.config == own.config
    assert found.warnings == ()
    for name, tensor in own.weights.items():
        assert np.array_equal(found.weights[name].data, tensor.data), name
    loaded = load_tokenizer(checkpoint, cache=tmp_path / "cache")
    text = "the bat sat"
    assert loaded.encode(text) == tokenizer.encode(text).ids
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.eos_ids == (Tokenizer.from_str(tokenizer.to_str()).token_to_id(END),)
    assert json.loads((tmp_path / "model/config.json").read_text()) == llama(vocab_size=270)


def test_what_cannot_be_trained_or_saved_is_named(tmp_path: Path):
    with pytest.raises(ModelFileError, match="rwkv"):
        Trainee(llama(model_type="rwkv"))
    good = Trainee(llama())
    short = {n: p for n, p in good.parameters.items() if n != "embed"}
    with pytest.raises(UsageError, match="embed"):
        Trainee(llama(), parameters=short)
    with pytest.raises(UsageError, match="gemma3"):
        Trainee(MODELS["soft cap"]).save(tmp_path, "{}", eos="")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        good.save(tmp_path / "file", "{}", eos="")
