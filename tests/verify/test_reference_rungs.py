"""The comparison with torch: bounds that honest results keep and small mistakes break."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.ops.kv import KVFormat
from headrace.ops.recording import Attend, Op, RmsNorm
from headrace.verify.faults import Fault
from headrace.verify.ladder import run_ladder
from headrace.verify.subject import Subject

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def reference_report(subject: Subject):  # type: ignore[no-untyped-def]
    return run_ladder(subject, only=lambda name: name in ("native = reference", "op by op"))


@pytest.mark.parametrize("name", ["llama", "gemma3-capped", "gpt2", "qwen2-window"])
@pytest.mark.parametrize("kv_format", [KVFormat.F32, KVFormat.BF16])
def test_float_models_are_within_their_bounds(
    name: str, kv_format: KVFormat, tmp_path: Path
) -> None:
    program = load(open_checkpoint(tiny_models.build(name, tmp_path)))
    report = reference_report(
        Subject(program, tiny_models.VOCAB, kv_format=kv_format, num_threads=1, length=400)
    )
    for rung in report.rungs:
        assert not rung.exact
        assert rung.events > 0
        assert 0 < rung.max_abs_error <= rung.bound, rung
    assert report.passed


@pytest.mark.parametrize("weights", ["BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_models_are_within_their_bounds(weights: str, tmp_path: Path) -> None:
    directory = tiny_models.build("llama-256", tmp_path / "hf")
    path = tiny_models.to_gguf(directory, tmp_path / "m.gguf", weights)
    program = load(open_checkpoint(path))
    report = reference_report(Subject(program, tiny_models.VOCAB, num_threads=1, length=400))
    for rung in report.rungs:
        assert rung.passed, rung


def _eps_ten_times(op: Op) -> Op:
    return dataclasses.replace(op, eps=op.eps * 10) if isinstance(op, RmsNorm) else op


def _scale_a_little_more(op: Op) -> Op:
    return dataclasses.replace(op, scale=op.scale * 1.01) if isinstance(op, Attend) else op


@pytest.mark.parametrize("edit", [_eps_ten_times, _scale_a_little_more])
def test_a_wrong_constant_in_every_native_path_is_caught_op_by_op(
    edit: object, tmp_path: Path
) -> None:
    program = load(open_checkpoint(tiny_models.build("llama", tmp_path)))
    fault = Fault("constant", "", edit=edit)  # type: ignore[arg-type]
    subject = Subject(
        program, tiny_models.VOCAB, kv_format=KVFormat.F32, num_threads=1, fault=fault
    )
    report = reference_report(subject)
    assert "op by op" in [rung.name for rung in report.failed]


def test_int8_codes_are_the_contract_s() -> None:
    """Against the formula of docs/numerics.md in numpy float32, ties and zero blocks included."""
    from headrace.ops.recording import ActivationKind
    from headrace.verify.rounding import round_activations

    random = np.random.default_rng(3)
    x = (random.standard_normal((64, 96)) * 10.0 ** random.integers(-3, 3, (64, 1))).astype("f4")
    x[3, :32] = 0
    x[4, :32] = np.arange(32) / np.float32(2)  # largest 15.5: products near halves
    got = round_activations(torch.from_numpy(x).double(), ActivationKind.INT8).numpy()
    blocks = x.reshape(64, 3, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.rint(blocks * (np.float32(127) / amax))
    codes = np.where(amax == 0, 0, codes).astype("f8")
    expected = (codes * (amax / np.float32(127)).astype("f8")).reshape(x.shape)
    assert (got == expected).all()
