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


@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_final_hidden_values_are_as_close_to_float64_as_torch_is(name: str, tmp_path: Path) -> None:
    """Against last_hidden_state; bounds as for logits."""
    import transformers_oracle

    ours, theirs, size = 0.0, 0.0, 0.0
    for seed in SEEDS:
        directory = tiny_models.build(name, tmp_path / str(seed), seed=seed)
        model = load(open_checkpoint(directory))
        parts, blocks = streams(LENGTHS, len(model.kv_groups), B, tiny_models.VOCAB, seed)
        ids = [p.ids.tolist() for p in parts]
        exact = torch.cat(transformers_oracle.final_hidden(directory, ids)).numpy()
        plain = torch.cat(transformers_oracle.final_hidden(directory, ids, torch.float32)).numpy()
        native = NativeModel(model, num_threads=2)
        native.allocate_kv([blocks] * len(model.kv_groups), B, KVFormat.F32)
        batch = batch_of([(p, p.left) for p in parts], B, logits="last")
        native.run(batch)
        rows = np.arange(sum(LENGTHS), dtype=np.int32)
        found = np.concatenate([part.copy() for part in native.final_hidden(batch, rows)])
        ours += float(((found - exact) ** 2).sum())
        theirs += float(((plain - exact) ** 2).sum())
        size += float((exact**2).sum())
    ratio = (ours / theirs) ** 0.5
    print(f"{name}: native {ours**0.5:.3g}, torch {theirs**0.5:.3g}, ratio {ratio:.2f}")
    assert 0 < theirs < 1e-8 * size
    assert ratio <= 2.0


@pytest.mark.parametrize("name", [*tiny_models.FAMILIES, "gemma3-capped", "qwen2-window"])
def test_every_op_is_as_close_to_float64_as_torch_is(name: str, tmp_path: Path) -> None:
    """On the native op's own inputs: RMS error ≤ 2 × torch float32's, plus one rounding (2⁻²⁴)."""
    from headrace.ops.reference.replay import Replay

    model = load(open_checkpoint(tiny_models.build(name, tmp_path, seed=3)))
    parts, blocks = streams(LENGTHS, len(model.kv_groups), B, tiny_models.VOCAB)
    native = NativeModel(model, num_threads=2, keep=True)
    native.allocate_kv([blocks] * len(model.kv_groups), B, KVFormat.F32)
    batch = batch_of([(p, p.left) for p in parts], B)
    traces = native.trace_step(batch)
    exact = Replay(model, batch, KVFormat.F32)
    plain = Replay(model, batch, KVFormat.F32, torch.float32)
    compared: dict[str, float] = {}
    for trace in traces:
        expected, usual = exact(trace.op, trace.inputs), plain(trace.op, trace.inputs)
        if trace.output is None:
            continue
        assert expected is not None
        assert usual is not None
        error, floor = rms(trace.output - expected), 2.0**-24 * rms(expected)
        kind = type(trace.op).__name__
        assert error <= 2 * rms(usual - expected) + floor, f"{trace.op}: {error}"
        compared[kind] = max(compared.get(kind, 0.0), error / rms(expected))
    print(name, {kind: f"{error:.2g}" for kind, error in compared.items()})
    assert {"Embed", "Linear", "Attend", "Add", "Select"} <= set(compared)


def rms(x: npt.NDArray[np.floating]) -> float:
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))
