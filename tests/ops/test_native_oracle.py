"""The native interpreter against torch: whole models against `transformers`, every op against the
reference op on the native op's own inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import LoadedModel, load
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from small_program import Stream, batch_of, streams

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

SEEDS = range(8)
B = 16
LENGTHS = (150, 1, 33)


def native_logits(
    model: LoadedModel, parts: list[Stream], blocks: int, fmt: KVFormat = KVFormat.F32
) -> list[npt.NDArray[np.float32]]:
    """Each stream's logits of all rows, from one step."""
    native = NativeModel(model, num_threads=2)
    native.allocate_kv([blocks] * len(model.kv_groups), B, fmt)
    logits = native.run(batch_of([(p, p.left) for p in parts], B)).copy()
    return np.split(logits, np.cumsum(LENGTHS)[:-1])


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Matrices here are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_float32_logits_are_as_close_to_float64_as_torch_is(name: str, tmp_path: Path) -> None:
    """RMS error over 8 seeds ≤ 2 × the RMS error of transformers' own float32."""
    import transformers_oracle

    ours, theirs, size = 0.0, 0.0, 0.0
    for seed in SEEDS:
        directory = tiny_models.build(name, tmp_path / str(seed), seed=seed)
        model = load(open_checkpoint(directory))
        parts, blocks = streams(LENGTHS, len(model.kv_groups), B, tiny_models.VOCAB, seed)
        ids = [p.ids.tolist() for p in parts]
        exact = transformers_oracle.logits(directory, ids)
        plain = transformers_oracle.logits(directory, ids, torch.float32)
        for e, p, n in zip(exact, plain, native_logits(model, parts, blocks), strict=True):
            ours += float(((torch.from_numpy(n).double() - e) ** 2).sum())
            theirs += float(((p.double() - e) ** 2).sum())
            size += float((e**2).sum())
    ratio = (ours / theirs) ** 0.5
    print(f"{name}: native {ours**0.5:.3g}, torch {theirs**0.5:.3g}, ratio {ratio:.2f}")
    assert 0 < theirs < 1e-8 * size
    assert ratio <= 2.0
