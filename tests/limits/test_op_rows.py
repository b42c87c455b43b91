"""The per-op table: no cost is lost or counted twice in fusion; figures by hand; a real profile."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.limits.op_rows import op_rows
from headrace.limits.rates import MachineRates
from headrace.models import catalog
from headrace.models.outline import outline_from_hf, uniform
from headrace.ops.contract import Rows
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, OpCost, StepCost, Unit
from headrace.ops.fuse import fuse
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.ops.packed import activation_kind
from headrace.ops.recording import (
    ActivationKind,
    Add,
    Linear,
    Matmul,
    Op,
    Prepare,
    Prepared,
    Value,
)
from headrace.quant.formats import BF16, F32, Q4_K, NumberFormat
from headrace.quant.tensor import HostTensor
from small_program import batch_of, small_program, streams

RATES = MachineRates(1e9, 4e9, 2e9, 1e9, 1, "avx2", 0)
X, Y, Z = (Value(i, Rows.TOKENS, 32, i, 0) for i in range(3))
P = Prepared(9, Rows.TOKENS, 32, ActivationKind.INT8)


def test_by_hand() -> None:
    """Two matmuls on one prepared input, then a sum; 1 GB/s and 4 Gop/s."""
    prepare, add = Prepare(0, X, ActivationKind.INT8, P), Add(0, Y, Z, X)
    first, second = Matmul(0, P, "a", None, Y), Matmul(0, P, "b", None, Z)
    cost = StepCost(
        (
            OpCost(Linear(0, X, "a", None, Y), Unit.INT8, 8_000, 1_000, format="Q4_K"),  # 2 µs
            OpCost(Linear(0, X, "b", None, Z), Unit.INT8, 4_000, 3_000, format="Q4_K"),  # 3 µs
            OpCost(add, Unit.F32, 100),
        )
    )
    profiles: list[list[tuple[Op, float]]] = [
        [(prepare, 1e-6), (first, 4e-6), (second, 5e-6 * late), (add, 1e-7)] for late in (1, 9, 1)
    ]
    matmul, prepared, added = op_rows(profiles, cost, RATES)
    assert (matmul.name, matmul.count) == ("matmul Q4_K", 2)
    assert matmul.seconds == pytest.approx(9e-6)  # the median of each
    assert (matmul.num_bytes, matmul.operations) == (4_000, 12_000)
    assert matmul.limit_s == pytest.approx(5e-6)
    assert matmul.of_limit == pytest.approx(5 / 9)
    assert matmul.gb_per_s == pytest.approx(4 / 9)
    assert matmul.gop_per_s == pytest.approx(12 / 9)
    assert matmul.share == pytest.approx(9 / 10.1)
    assert (prepared.name, prepared.of_limit, prepared.gb_per_s) == ("prepare", None, 0)
    assert (added.name, added.of_limit) == ("add", pytest.approx(1.0))


def test_a_fused_kernel_answers_for_all_its_parts() -> None:
    linear, add = Linear(0, X, "a", None, Y), Add(0, Y, X, Z)
    matmul = Matmul(0, P, "a", None, Y)
    fused = Matmul(0, P, "a", None, Z, fused=(matmul, add))
    cost = StepCost((OpCost(linear, Unit.INT8, 4_000, format="Q8_0"), OpCost(add, Unit.F32, 500)))
    (row,) = op_rows([[(fused, 3e-6)]], cost, RATES)
    assert (row.operations, row.limit_s) == (4_500, pytest.approx(1.5e-6))


def test_a_cost_that_no_kernel_answers_for_is_an_error() -> None:
    cost = StepCost((OpCost(Add(0, X, Y, Z), Unit.F32, 1),))
    with pytest.raises(AssertionError, match="no kernel stands for"):
        op_rows([[(Add(0, X, Z, Y), 1.0)]], cost, RATES)


CONFIG = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": 64,
    "n_embd": 256,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "attention_bias": False,
}


@pytest.mark.parametrize("fmt", [F32, BF16, Q4_K], ids=lambda f: f.name)
@pytest.mark.parametrize("model_type", catalog.HF_MODEL_TYPES)
def test_fusion_loses_no_cost(model_type: str, fmt: NumberFormat) -> None:
    outline = outline_from_hf(CONFIG | {"model_type": model_type}, format_of=uniform(fmt))
    model = CostModel(outline)
    cost = model.step([Chunk(5, 9), Chunk(1, 400)], num_prompt_rows=2, num_hidden_rows=3)
    tensors = {n: HostTensor(t.format, t.shape, None) for n, t in outline.weights.items()}
    fused = fuse(model.recording, lambda name: activation_kind(tensors[name]))
    rows = op_rows([[(op, 1.0) for op in fused.ops()]], cost, RATES)
    assert sum(row.operations for row in rows) == cost.total.operations
    assert sum(row.num_bytes for row in rows) == cost.total.num_bytes
    assert sum(row.count for row in rows) == len(list(fused.ops()))
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_a_native_profile() -> None:
    program = small_program()
    native = NativeModel(program, num_threads=1)
    (stream,), blocks = streams((50,), 2, 16, 100)
    native.allocate_kv([blocks] * 2, 16, KVFormat.BF16)
    native.profile(True)
    native.run(batch_of([(stream, 9)], 16, logits="last"))
    profile = native.op_seconds()
    cost = CostModel(program).step([Chunk(9, 9)])
    rows = op_rows([profile], cost, RATES)
    step = len(native.fused.segments[0])
    # The kernels of prompt rows did not run.
    assert sum(row.count for row in rows) == step
    assert sum(row.seconds for row in rows) == pytest.approx(sum(s for _, s in profile[:step]))
    assert sum(row.operations for row in rows) == cost.total.operations
    names = {row.name for row in rows}
    assert {"matmul F32", "attend bf16"} <= names
    assert any(name.startswith("row_wise") for name in names)  # the embedding among them
    assert all(a.seconds >= b.seconds for a, b in pairwise(rows))
