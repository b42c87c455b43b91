"""Every check value of the performance model, through the interpreter from a config file's words.

Llama-2-13B on one H100. The figures are published ones; nothing here repeats the formulas. They
count the whole embedding as read; the interpreter only the rows gathered, so it is below by that.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.limits.bound import Peaks, bound
from headrace.limits.rates import MachineRates
from headrace.limits.workloads import decode_limit
from headrace.models.outline import outline_from_hf
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
H100 = MachineRates(
    read_bytes_per_s=3.35e12,
    int8_ops_per_s=1979e12,
    bf16_ops_per_s=989e12,
    f32_ops_per_s=67e12,
    num_threads=1,
    isa="h100",
    llc_bytes=50_000_000,
)
MEMORY_BYTES, DOLLARS_PER_HOUR, CONTEXT = 80e9, 2.0, 1024
MHA = CostModel(outline_from_hf(CONFIG))
GQA = CostModel(outline_from_hf(CONFIG | {"num_key_value_heads": 8}))


def step_bytes(model: CostModel, batch: int) -> tuple[float, float]:
    """Bytes of a decode step: (with the whole embedding, as the interpreter counts)."""
    total = model.step([Chunk(1, CONTEXT)] * batch).total
    return model.weight_bytes + total.kv_bytes, total.num_bytes


def test_parameters_and_cache() -> None:
    assert pytest.approx(13.02e9, rel=5e-4) == MHA.num_parameters
    assert pytest.approx(26.0e9, rel=2e-3) == MHA.weight_bytes
    assert MHA.kv_bytes_per_position == 819_200
    assert MHA.step([Chunk(1, CONTEXT)]).total.kv_bytes == pytest.approx(0.839e9, rel=5e-4)
    assert MHA.weight_bytes / MHA.kv_bytes_per_position == pytest.approx(31_800, rel=1e-3)
    assert pytest.approx(11.3e9, abs=0.05e9) == GQA.num_parameters
    assert GQA.step([Chunk(1, CONTEXT)]).total.kv_bytes == pytest.approx(0.168e9, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "batch", "step_gb", "step_ms", "tok_per_s"),
    [
        (MHA, 1, 26.9, 8.0, 125),
        (MHA, 64, 79.7, 23.8, 2690),
        (MHA, 256, 240.8, 71.9, 3560),
        (GQA, 64, 33.4, 10.0, None),
        (GQA, 256, 65.6, 19.6, 13_070),
    ],
)
def test_decode_steps(
    model: CostModel, batch: int, step_gb: float, step_ms: float, tok_per_s: float | None
) -> None:
    published, counted = step_bytes(model, batch)
    assert published / 1e9 == pytest.approx(step_gb, abs=0.06)
    assert published / H100.read_bytes_per_s * 1e3 == pytest.approx(step_ms, abs=0.06)
    embedding, gathered = 32000 * 5120 * 2, batch * 5120 * 2
    assert published - counted == embedding - gathered
    limit = bound(model.step([Chunk(1, CONTEXT)] * batch), H100, Peaks.OWN)
    assert limit.limited_by == "memory"
    assert limit.bound_s == pytest.approx(counted / H100.read_bytes_per_s)
    if tok_per_s is not None:
        assert batch * H100.read_bytes_per_s / published == pytest.approx(tok_per_s, rel=5e-3)


def test_what_fits_and_what_it_costs() -> None:
    assert step_bytes(MHA, 64)[0] < MEMORY_BYTES < step_bytes(MHA, 256)[0]
    assert step_bytes(GQA, 256)[0] < MEMORY_BYTES
    for batch, dollars in ((1, 4.46), (64, 0.21)):
        tok_per_s = batch * H100.read_bytes_per_s / step_bytes(MHA, batch)[0]
        assert DOLLARS_PER_HOUR / 3600 / tok_per_s * 1e6 == pytest.approx(dollars, abs=0.006)
    gain = 256 / step_bytes(GQA, 256)[0] * step_bytes(MHA, 64)[0] / 64
    assert gain == pytest.approx(4.9, abs=0.06)


def test_a_run_of_decode_steps_at_this_depth() -> None:
    limit = decode_limit(MHA, H100, 1, depth=CONTEXT - 1, peaks=Peaks.OWN)
    assert limit.tok_per_s == pytest.approx(125, rel=0.02)
    assert limit.memory_bound_share == 1


def test_the_step_turns_compute_bound_at_the_machines_ratio() -> None:
    """bf16 peak ÷ bandwidth ≈ 295 operations per byte, which in 2-byte numbers is 295 tokens."""
    assert H100.bf16_ops_per_s / H100.read_bytes_per_s == pytest.approx(295, abs=0.5)
    kinds = {}
    for tokens in (200, 400):
        cost = MHA.step([Chunk(tokens, tokens)], num_logit_rows=tokens)
        kinds[tokens] = bound(cost, H100, Peaks.OWN).limited_by
    assert kinds == {200: "memory", 400: "compute"}


def test_two_operations_per_parameter_and_token() -> None:
    """Without attention; the embedding is looked up, not multiplied by."""
    linear = MHA.step([Chunk(1, 1)]).by_kind()["linear"]
    assert linear.operations == 2 * (MHA.num_parameters - 32000 * 5120 - 81 * 5120)


@pytest.mark.parametrize(("kv_heads", "gib"), [(32, 2.0), (8, 0.5)])
def test_cache_of_a_7b_shape(kv_heads: int, gib: float) -> None:
    """L = 32, D = 128, 16 bit, S = 4096: 2 GiB with 32 KV heads, 512 MiB with 8."""
    shape = {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
    }
    model = CostModel(outline_from_hf(CONFIG | shape))
    assert model.kv_bytes_per_position * 4096 == gib * 2**30
    for sequences, context in ((1, 4096), (4, 1024)):
        kv = model.step([Chunk(1, context)] * sequences).total.kv_bytes
        assert kv == gib * 2**30
