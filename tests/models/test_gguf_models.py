"""The same model as GGUF file and as Hugging Face directory gives the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.canonical import half_from_interleaved
from headrace.models.load import LoadedModel, load

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

SEQUENCES = [[(5 * i * i + i + 2) % tiny_models.VOCAB for i in range(n)] for n in (60, 3)]
#: GGUF has no key for what the other tiny models set (windows of qwen2, layer types).
EXPRESSIBLE = (
    "llama",
    "llama-tied",
    "llama-mha",
    "llama-bias",
    "llama3-rope",
    "mistral",
    "mistral-full",
    "qwen2",
    "qwen3",
    "gemma3",
    "gpt2",
    "gpt2-untied",
)


def _logits(model: LoadedModel) -> torch.Tensor:
    from headrace.ops.reference import ReferenceModel

    return torch.cat(ReferenceModel(model).logits(SEQUENCES))


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_gguf_equals_huggingface(name: str, tmp_path: Path) -> None:
    directory = tiny_models.build(name, tmp_path / "hf", seed=2)
    file = tiny_models.to_gguf(directory, tmp_path / "tiny.gguf")
    ours, theirs = (_logits(load(open_checkpoint(path))) for path in (file, directory))
    # GGUF stores eps, and llama3's rotary factors, as float32.
    bound = 2e-5 if name == "llama3-rope" else 1e-10
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)


def test_query_and_key_rows_are_reordered_without_touching_their_bytes(tmp_path: Path) -> None:
    directory = tiny_models.build("llama-256", tmp_path / "hf")
    file = tiny_models.to_gguf(directory, tmp_path / "tiny.gguf", "Q8_0")
    checkpoint = open_checkpoint(file)
    model = load(checkpoint)
    q, v = model.weights["layers.0.q"], model.weights["layers.0.v"]
    assert q.format.name == "Q8_0"
    assert q.row_order is not None
    assert v.row_order is None
    stored = checkpoint.tensors["blk.0.attn_q.weight"].data
    assert q.data.ctypes.data == stored.ctypes.data
    assert sorted(q.row_order) == list(range(256))


def test_half_from_interleaved_by_hand() -> None:
    # Two heads of width 6: the file holds 0 3 1 4 2 5 | 6 9 7 10 8 11 of the canonical rows.
    assert half_from_interleaved(2, 12).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_quantised_gguf_stays_near_its_float_form(tmp_path: Path) -> None:
    directory = tiny_models.build("llama-256", tmp_path / "hf")
    exact = _logits(load(open_checkpoint(directory)))
    file = tiny_models.to_gguf(directory, tmp_path / "tiny.gguf", "Q8_0")
    error = (_logits(load(open_checkpoint(file))) - exact).abs().max()
    assert 0 < error < 0.1 * exact.std()
