"""The closed form of a step's limit equals the sum over its ops, for every family and step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.limits.bound import Peaks, bound
from headrace.limits.rates import MachineRates
from headrace.limits.step_limits import StepLimits
from headrace.models import catalog
from headrace.models.outline import outline_from_hf, uniform
from headrace.ops.contract import Rows
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.kv import KVFormat
from headrace.ops.program import Outline
from headrace.quant.formats import BF16, Q4_K
from small_program import small_program

CONFIG: dict[str, Any] = {
    "vocab_size": 3000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": 64,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "n_embd": 256,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "attention_bias": False,
}


def _outline(model_type: str, tied: bool) -> Outline:
    config = CONFIG | {"model_type": model_type, "tie_word_embeddings": tied}
    if model_type != "gemma3_text":
        config.pop("layer_types")
    return outline_from_hf(config, format_of=uniform(Q4_K if tied else BF16))


OUTLINES: dict[str, Outline] = {"small": small_program()} | {
    f"{name}{' tied' * tied}": _outline(name, tied)
    for name in catalog.HF_MODEL_TYPES
    for tied in (False, True)
}
#: Around the sizes of a step's values, so that some of them fit and some do not.
CACHES = (None, 0, 4_000, 30_000, 200_000, 1 << 20, 1 << 30)
MODELS = {
    (name, cache): CostModel(outline, kv_format=fmt, cache_bytes=cache)
    for name, outline in OUTLINES.items()
    for cache, fmt in zip(CACHES, [KVFormat.BF16, KVFormat.F32] * 4, strict=False)
}


@st.composite
def chunks(draw: st.DrawFn) -> list[Chunk]:
    contexts = draw(st.lists(st.integers(1, 500), min_size=1, max_size=6))
    return [Chunk(draw(st.sampled_from([1, 1, c, (c + 1) // 2])), c) for c in contexts]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(OUTLINES)),
    st.sampled_from(CACHES),
    chunks(),
    st.integers(0, 6),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from(Peaks),
    st.lists(st.floats(1e6, 1e14), min_size=4, max_size=4),
)
def test_it_equals_the_sum_over_the_ops(
    name: str,
    cache: int | None,
    step: list[Chunk],
    num_logit_rows: int,
    num_prompt_rows: int,
    num_hidden_rows: int,
    peaks: Peaks,
    speeds: list[float],
) -> None:
    model = MODELS[name, cache]
    rates = MachineRates(*speeds, 1, "any", 0)
    limits = StepLimits(model, rates, peaks)
    cost = model.step(
        step,
        num_logit_rows=num_logit_rows,
        num_prompt_rows=num_prompt_rows,
        num_hidden_rows=num_hidden_rows,
    )
    found = limits.step(
        (sum(c.num_new for c in step), num_logit_rows, num_prompt_rows, num_hidden_rows),
        [sum(c.visible_pairs(w) for c in step) for w in limits.windows],
        [sum(c.visible_before(w) for c in step) for w in limits.windows],
    )
    assert found.bound_s == bound(cost, rates, peaks).bound_s
    assert found.operations == cost.total.operations
    assert found.read_bytes + found.written_bytes == cost.total.num_bytes
    assert found.written_bytes >= cost.total.kv_write_bytes
    if cache is None:
        assert found.written_bytes == cost.total.kv_write_bytes


@pytest.mark.parametrize("name", sorted(OUTLINES))
def test_the_caches_of_the_test_divide_its_steps(name: str) -> None:
    """Without values that fit and values that do not, the property would say nothing on them."""
    step = [Chunk(300, 300)]
    spilled = {MODELS[name, cache].step(step).total.activation_bytes for cache in CACHES}
    assert len(spilled) >= 4
    assert {known.rows for known in MODELS[name, None].ops} == set(Rows)


def test_what_is_written_when_nothing_fits() -> None:
    """Every op's output crosses the bus once."""
    model = MODELS["small", 0]
    cost = model.step([Chunk(3, 3)], num_prompt_rows=2)
    outputs = [(c.op.output, c.op) for c in cost.ops if c.op.output is not None]
    rows = {Rows.TOKENS: 3, Rows.LOGIT_ROWS: 1, Rows.PROMPT_ROWS: 2}
    written = sum(4 * rows[v.rows] * v.columns for v, _ in outputs)
    limits = StepLimits(model, MachineRates(1.0, 1.0, 1.0, 1.0, 1, "any", 0))
    found = limits.step((3, 1, 2, 0), [6] * len(limits.windows), [0] * len(limits.windows))
    assert found.written_bytes == written + cost.total.kv_write_bytes
