"""Every family against `transformers`: same file, float64 on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

#: Three sequences; the longest is several times every window of the tiny models.
SEQUENCES = [
    [(7 * i * i + 3 * i + 1) % tiny_models.VOCAB for i in range(length)] for length in (70, 1, 23)
]


@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_float64_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    import transformers_oracle
    from headrace.ops.reference import ReferenceModel

    directory = tiny_models.build(name, tmp_path, seed=1)
    expected = transformers_oracle.logits(directory, SEQUENCES)
    actual = ReferenceModel(load(open_checkpoint(directory))).logits(SEQUENCES)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        assert theirs.std() > 0.05, "logits too flat to show a difference"
