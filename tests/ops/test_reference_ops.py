"""The reference ops against torch's own functions and against formulas written another way."""

from __future__ import annotations

import cmath
import math
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from headrace.errors import PromptError
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.models.rotary import plain
from headrace.ops.contract import Activation, RopeLayout, RopeSpec, ShapeError
from headrace.ops.kv import KVFormat
from headrace.quant.formats import Q8_0
from headrace.quant.quantize import quantize

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_norms_and_gates_equal_torch() -> None:
    import torch.nn.functional as F

    from headrace.ops.reference import functions as f

    x, w, b = noise(5, 42), 1 + noise(42, seed=1), noise(42, seed=2)
    close = torch.testing.assert_close
    close(f.rms_norm(x, w, 1e-3), F.rms_norm(x, (42,), w, 1e-3))
    heads = F.rms_norm(x.reshape(5, 3, 14), (14,), w[:14], 1e-3).reshape(5, 42)
    close(f.rms_norm(x, w[:14], 1e-3, groups=3), heads)
    close(f.layer_norm(x, w, b, 1e-3), F.layer_norm(x, (42,), w, b, 1e-3))
    close(f.gelu(x), F.gelu(x, approximate="tanh"))
    close(f.gated(x, x + 1, Activation.SILU), F.silu(x) * (x + 1))
    close(f.gated(x, x + 1, Activation.GELU_TANH), F.gelu(x, approximate="tanh") * (x + 1))
    close(f.capped(x, 0.5), 0.5 * torch.tanh(2 * x))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_step_may_ask_for_no_logits(name: str, tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel

    model = load(open_checkpoint(tiny_models.build(name, tmp_path)))
    (none,) = ReferenceModel(model).logits([[1, 2, 3]], rows=[[]])
    assert none.shape == (0, tiny_models.VOCAB)


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (14, 2), (9, 1)])
def test_attention_equals_torch(heads: int, kv_heads: int, window: int | None) -> None:
    import torch.nn.functional as F

    from headrace.ops.reference import functions as f

    rows, held, dim = 6, 17, 10  # the last 6 of 17 positions ask
    q = noise(rows, heads * dim)
    k, v = noise(held, kv_heads * dim, seed=1), noise(held, kv_heads * dim, seed=2)
    at = torch.arange(held - rows, held)
    mask = torch.zeros(rows, held, dtype=torch.bool)
    for i, p in enumerate(at.tolist()):
        first = 0 if window is None else max(0, p - window + 1)
        mask[i, first : p + 1] = True
    expected = F.scaled_dot_product_attention(
        q.reshape(rows, heads, dim).transpose(0, 1),
        k.reshape(held, kv_heads, dim).transpose(0, 1),
        v.reshape(held, kv_heads, dim).transpose(0, 1),
        attn_mask=mask,
        scale=0.7,
        enable_gqa=True,
    )
    actual = f.attend(
        q, k, v, at, torch.arange(held), heads=heads, kv_heads=kv_heads, scale=0.7, window=window
    )
    torch.testing.assert_close(actual, expected.transpose(0, 1).reshape(rows, heads * dim))


def test_attention_in_slices_of_rows_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.ops.reference import functions as f

    q, at = noise(23, 4), torch.arange(23)
    whole = f.attend(q, q, q, at, at, heads=2, kv_heads=2, scale=1.0, soft_cap=0.4)
    monkeypatch.setattr(f, "_ROWS_AT_ONCE", 5)
    sliced = f.attend(q, q, q, at, at, heads=2, kv_heads=2, scale=1.0, soft_cap=0.4)
    torch.testing.assert_close(sliced, whole)
    uncapped = f.attend(q, q, q, at, at, heads=2, kv_heads=2, scale=1.0)
    assert (uncapped - whole).abs().max() > 1e-3


@pytest.mark.parametrize("layout", RopeLayout)
def test_rope_is_a_complex_rotation(layout: RopeLayout) -> None:
    from headrace.ops.reference import functions as f

    spec = RopeSpec(6, plain(6, 100.0).frequencies, layout)
    x, positions = noise(4, 2 * 10), torch.tensor([0, 1, 7, 5000])
    turned = f.rope(x, positions, 2, spec)
    for t, position in enumerate(positions.tolist()):
        for start in (0, 10):
            for i, frequency in enumerate((1.0, 100 ** (-1 / 3), 100 ** (-2 / 3))):
                pair = (i, i + 3) if layout is RopeLayout.HALF else (2 * i, 2 * i + 1)
                a, b = (start + p for p in pair)
                z = complex(x[t, a], x[t, b]) * cmath.exp(1j * position * frequency)
                assert abs(z - complex(turned[t, a], turned[t, b])) < 1e-11
            rest = slice(start + 6, start + 10)
            assert torch.equal(turned[t, rest], x[t, rest])


def test_apply_op_takes_arrays_and_quantised_weights() -> None:
    from headrace.ops.reference import apply_op

    x, weight = noise(3, 64).numpy(), noise(5, 64, seed=1).numpy().astype(np.float32)
    stored, bias = quantize(weight, Q8_0), noise(5, seed=2).numpy()
    codes = stored.data.reshape(-1, 34)
    scales = codes[:, :2].copy().view(np.float16).astype(np.float64)
    dense = (scales * codes[:, 2:].view(np.int8)).reshape(5, 64)
    y = apply_op("linear", {"x": x, "weight": stored, "bias": bias})
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, x @ dense.T + bias, rtol=1e-6)
    with pytest.raises(KeyError):
        apply_op("convolve", {"x": x})


def test_apply_op_covers_the_vocabulary() -> None:
    from headrace.ops.reference import apply_op

    x, ids = noise(4, 12).numpy(), np.array([2, 0], dtype=np.int32)
    at = np.arange(4, dtype=np.int32)
    np.testing.assert_array_equal(apply_op("embed", {"weight": x, "index": ids}), x[[2, 0]])
    np.testing.assert_array_equal(apply_op("rows", {"x": x, "index": ids}), x[[2, 0]])
    np.testing.assert_array_equal(apply_op("add", {"a": x, "b": x}), 2 * x)
    third = apply_op("scale", {"x": x}, {"factor": 1 / 3})
    np.testing.assert_array_equal(third, x * np.float64(np.float32(1 / 3)))
    rounded = apply_op("kv_write", {"x": x}, {"kv_format": KVFormat.F16})
    np.testing.assert_array_equal(rounded, x.astype(np.float16))
    np.testing.assert_allclose(apply_op("soft_cap", {"x": x}, {"cap": 2.0}), 2 * np.tanh(x / 2))
    attributes = {"heads": 2, "kv_heads": 1, "scale": 1.0}
    held = {"k": x[:, :6], "v": x[:, 6:], "q_positions": at, "k_positions": at}
    mixed = apply_op("attend", {"q": x, **held}, attributes)
    np.testing.assert_allclose(mixed[0], np.tile(x[0, 6:], 2))  # position 0 sees itself alone
    spec = {"heads": 2, "spec": plain(6, 10.0)}
    turned = apply_op("rope", {"x": x, "positions": at}, spec)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(x, axis=1))


def test_shapes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel

    model = load(open_checkpoint(tiny_models.build("llama", tmp_path)))
    wrong = {"layers.1.up": torch.zeros(88, 53, dtype=torch.float64)}
    with pytest.raises(ShapeError, match=r"layers\.1\.up"):
        ReferenceModel(model, overrides=wrong).logits([[1, 2]])


@pytest.mark.parametrize("ids", [[], [tiny_models.VOCAB], [-1], [0] * 2049])
def test_bad_prompts_are_refused(ids: list[int], tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel

    model = load(open_checkpoint(tiny_models.build("llama-tied", tmp_path)))
    with pytest.raises(PromptError):
        ReferenceModel(model).logits([[1], ids])


def test_weights_kept_sliced_or_overridden_give_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.ops.reference import ReferenceModel, weights
    from headrace.quant.dequantize import dequantize

    model = load(open_checkpoint(tiny_models.build("qwen3", tmp_path)))
    ids = [[3, 1, 4, 1, 5], [9, 2]]
    kept = torch.cat(ReferenceModel(model).logits(ids))
    monkeypatch.setattr(weights, "_SLICE_BYTES", 1000)
    sliced = torch.cat(ReferenceModel(model, cache_bytes=0).logits(ids))
    torch.testing.assert_close(sliced, kept, rtol=0, atol=1e-12)
    same = {n: torch.from_numpy(dequantize(t)).double() for n, t in model.weights.items()}
    overridden = torch.cat(ReferenceModel(model, overrides=same).logits(ids))
    torch.testing.assert_close(overridden, kept, rtol=0, atol=0)
    last = torch.cat(ReferenceModel(model).logits(ids, rows=[[4], [0, 1]]))
    torch.testing.assert_close(last, kept[4:], rtol=0, atol=1e-12)


def test_trace_shows_linear_inputs_and_layer_outputs(tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel
    from headrace.quant.dequantize import dequantize

    model = load(open_checkpoint(tiny_models.build("gemma3", tmp_path)))
    trace = ReferenceModel(model).trace([[7, 8, 9]])
    linears = {n for n, t in model.weights.items() if len(t.shape) == 2}
    assert set(trace.taps.linear_inputs) == linears  # the tied head reads "embed"
    assert sorted(trace.taps.layer_outputs) == list(range(7))
    assert torch.equal(trace.taps.layer_outputs[6], trace.hidden)
    (x,) = trace.taps.linear_inputs["embed"]
    head = torch.from_numpy(dequantize(model.weights["embed"])).double()
    torch.testing.assert_close(x @ head.T, trace.logits, rtol=0, atol=1e-12)


def test_gradients_flow_to_weights(tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel
    from headrace.quant.dequantize import dequantize

    model = load(open_checkpoint(tiny_models.build("gemma3", tmp_path)))
    name = "layers.2.k"
    weight = torch.from_numpy(dequantize(model.weights[name])).double().requires_grad_()

    def loss() -> torch.Tensor:
        logits = ReferenceModel(model, overrides={name: weight}).logits([[3, 1, 4, 1, 5, 9]])[0]
        return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor([1, 4, 1, 5, 9]))

    (gradient,) = torch.autograd.grad(loss(), weight)
    step, at = 1e-5, divmod(int(gradient.abs().argmax()), weight.shape[1])
    with torch.no_grad():
        weight[at] += step
        above = loss()
        weight[at] -= 2 * step
        slope = (above - loss()) / (2 * step)
    assert math.isclose(float(slope), float(gradient[at]), rel_tol=1e-5)
    assert gradient[at].abs() > 1e-5
