"""Estimates: by hand, round trips, what must hold for every calibration, and their own refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.limits.bound import Peaks, bound
from headrace.limits.estimate import Calibration, Curve, Reach, estimate, kernels_of, parts_of
from headrace.limits.rates import MachineRates
from headrace.models.outline import ModelOutline, outline_from_hf, uniform
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.fuse import fuse
from headrace.ops.packed import activation_kind
from headrace.ops.record import record
from headrace.ops.recording import Attend, Matmul
from headrace.quant.formats import FORMATS, Q4_K
from headrace.quant.tensor import HostTensor
from small_program import small_program

RATES = MachineRates(100e9, 1000e9, 500e9, 250e9, 2, "avx512", 1 << 20)
ONE = Curve((1,), (1.0,))
PERFECT = Calibration(
    cpu="a processor",
    num_threads=2,
    isa="avx512",
    version="1",
    date="2026-01-01",
    curves={"linear F32": ONE, "linear Q4_K": ONE, "attend 10": ONE, "row_wise": ONE},
    op_s=0.0,
    step_s=0.0,
    sequence_s=0.0,
    logit_s=0.0,
)
SMALL = CostModel(small_program())


def _llama(**changes: object) -> ModelOutline:
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    return outline_from_hf(config | changes, format_of=uniform(Q4_K))


def test_by_hand() -> None:
    calibration = Calibration(
        cpu="",
        num_threads=2,
        isa="",
        version="",
        date="",
        curves={
            "linear Q4_K": Curve((1, 4), (0.8, 0.4)),
            "attend 64": Curve((1,), (0.5,)),
            "row_wise": Curve((1,), (0.1,)),
        },
        op_s=1e-6,
        step_s=50e-6,
        sequence_s=5e-6,
        logit_s=1e-9,
    )
    costs = CostModel(_llama())
    parts = {p.name: p for p in parts_of(costs.step([Chunk(1, 101)] * 2), RATES, calibration)}
    # q, k, v, o, gate, up, down, head at two rows; the curve at 2 is half way from 1 to 4: 0.6.
    numbers = 256 * 256 * 2 + 2 * 128 * 256 + 3 * 512 * 256 + 1024 * 256
    linear = parts["linear Q4_K"]
    assert linear.count == 8
    assert linear.share == pytest.approx(0.6)
    assert linear.roof_s == pytest.approx(numbers * 4.5 / 8 / 100e9)
    assert linear.seconds == pytest.approx(linear.roof_s / 0.6 + 8e-6)
    # 100 positions of 2 sequences are read, 101 pairs each computed, one after the other.
    attend = parts["attend 64"]
    assert attend.roof_s == pytest.approx(2 * 100 * 2 * 128 * 2 / 100e9 + 2 * 101 * 4 * 256 / 500e9)
    assert attend.seconds == pytest.approx(attend.roof_s / 0.5 + 1e-6)
    # embed norm prepare | rope rope kv | prepare | add norm prepare | gated prepare | add select
    # norm prepare: kernels begin at embed, rope, attention's prepare, add, gated, add, select.
    row_wise = parts["row_wise"]
    tokens = 256 * 3 + (256 + 128 + 256) + 256 + 256 * 3 + 512 * 2 + 256
    assert row_wise.count == 7
    assert row_wise.roof_s == pytest.approx(2 * (tokens + 3 * 256) / 250e9)
    assert parts["step"].seconds == 50e-6
    assert parts["sequences"].seconds == pytest.approx(10e-6)
    assert parts["logits"].seconds == pytest.approx(2 * 1024 * 1e-9)
    whole = estimate(costs.step([Chunk(1, 101)] * 2), RATES, calibration)
    assert whole == pytest.approx(sum(part.seconds for part in parts.values()))


@pytest.mark.parametrize("program", [small_program(), _llama()], ids=["small", "llama"])
def test_kernels_are_those_that_fusion_leaves(program: ModelOutline) -> None:
    """Linears, attention and row-wise kernels, counted on the fused recording."""
    formats = {
        name: HostTensor(spec.format, spec.shape, None)  # type: ignore[arg-type]
        for name, spec in program.weights.items()
    }
    fused = fuse(record(program), lambda name: activation_kind(formats[name])).segments[0]
    kernels = list(kernels_of(CostModel(program).step([Chunk(3, 9)]), RATES))
    count = {
        "linear": sum(k.count for k in kernels if k.kind.startswith("linear")),
        "attend": sum(k.count for k in kernels if k.kind.startswith("attend")),
        "row": sum(k.count for k in kernels if k.kind == "row_wise"),
    }
    assert count["linear"] == sum(isinstance(op, Matmul) for op in fused)
    assert count["attend"] == sum(isinstance(op, Attend) for op in fused)
    assert count["row"] == len(fused) - count["linear"] - count["attend"]


chunks_of_steps = st.lists(
    st.tuples(st.integers(1, 64), st.integers(0, 500)).map(lambda c: Chunk(c[0], sum(c))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(chunks_of_steps)
def test_at_a_share_of_one_without_fixed_costs_nothing_is_faster_than_the_bound(
    chunks: list[Chunk],
) -> None:
    step = SMALL.step(chunks)
    linears_and_attention = replace(step, ops=tuple(c for c in step.ops if c.format is not None))
    least = bound(linears_and_attention, RATES, Peaks.OWN).bound_s
    assert estimate(step, RATES, PERFECT) >= least * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(chunks_of_steps, st.floats(0.05, 1.0))
def test_half_the_share_is_twice_the_time(chunks: list[Chunk], share: float) -> None:
    step = SMALL.step(chunks)
    slow = replace(PERFECT, curves={k: Curve((1,), (share,)) for k in PERFECT.curves})
    assert estimate(step, RATES, slow) == pytest.approx(estimate(step, RATES, PERFECT) / share)


def test_prompts_and_single_tokens_of_one_step_have_their_own_shares() -> None:
    curves = dict(PERFECT.curves) | {"attend 10": Curve((1, 40), (0.5, 0.25))}
    mixed = replace(PERFECT, curves=curves)

    def attention(chunks: list[Chunk]) -> float:
        parts = parts_of(SMALL.step(chunks), RATES, mixed)
        return sum(p.seconds for p in parts if p.name == "attend 10")

    single, prompt = [Chunk(1, 300)], [Chunk(40, 80)]
    assert attention(single + prompt) == pytest.approx(attention(single) + attention(prompt))


def test_what_is_reached_of_bandwidth_and_peak_counts_apart() -> None:
    """At half of the bandwidth and a quarter of the peak, whichever takes longer is the time; so
    more bandwidth stops helping where the arithmetic begins to limit."""
    reach = {"linear F32": Reach(0.5, 0.25)}
    slow = replace(PERFECT, reach=reach)
    step = SMALL.step([Chunk(1, 9)])

    def linears(rates: MachineRates, calibration: Calibration) -> float:
        parts = parts_of(step, rates, calibration)
        return sum(p.seconds for p in parts if p.name == "linear F32")

    memory = replace(RATES, read_bytes_per_s=1e6)
    assert linears(memory, slow) == pytest.approx(2 * linears(memory, PERFECT))
    compute = replace(RATES, read_bytes_per_s=1e18)
    assert linears(compute, slow) == pytest.approx(4 * linears(compute, PERFECT))
    assert linears(replace(compute, read_bytes_per_s=1e19), slow) == linears(compute, slow)
    assert Calibration.from_dict(json.loads(json.dumps(slow.to_dict()))).reach == reach


def test_curve_between_and_beyond_its_points() -> None:
    curve = Curve((1, 4, 16), (0.8, 0.4, 0.6))
    assert [curve.at(n) for n in (0.5, 1, 2, 4, 8, 16, 999)] == pytest.approx(
        [0.8, 0.8, 0.6, 0.4, 0.5, 0.6, 0.6]
    )
    for rows, shares in (((), ()), ((1, 1), (0.5, 0.5)), ((1,), (0.0,)), ((1,), (float("nan"),))):
        with pytest.raises(ValueError, match="a curve needs"):
            Curve(rows, shares)


def test_a_class_that_was_not_measured_goes_by_its_nearest_relative() -> None:
    curves = {"row_wise": ONE} | {
        f"linear {name}": Curve((1,), (FORMATS[name].bits_per_weight / 100,))
        for name in ("Q4_K", "Q8_0", "BF16", "F32")
    }
    curves |= {f"attend {n}": Curve((1,), (n / 1000,)) for n in (64, 128, 256)}
    known = replace(PERFECT, curves=curves)
    assert known.known("linear Q4_0") == "linear Q4_K"
    assert known.known("linear Q6_K") == "linear Q8_0"
    assert known.known("linear F16") == "linear BF16"
    assert known.known("attend 80") == "attend 64"
    assert known.known("attend 192") == "attend 256"
    assert known.known("attend 8") == "attend 64"
    with pytest.raises(UsageError, match="no figures for scan 3"):
        known.known("scan 3")


def test_round_trip_through_json() -> None:
    curves = dict(PERFECT.curves) | {"linear Q4_K": Curve((1, 8, 512), (0.9, 0.33, 0.1))}
    known = replace(PERFECT, curves=curves, op_s=3e-7, step_s=7e-5, sequence_s=4e-6, logit_s=1e-10)
    again = Calibration.from_dict(json.loads(json.dumps(known.to_dict())))
    step = SMALL.step([Chunk(5, 77), Chunk(1, 9)])
    assert again.curves == known.curves
    assert estimate(step, RATES, again) == pytest.approx(estimate(step, RATES, known), rel=1e-12)


@pytest.mark.parametrize(
    "damage",
    [
        {"shares": {}},
        {"shares": {"row_wise": {"1": -1}}},
        {"shares": {"row_wise": {"one": 1}}},
        {"shares": {"row_wise": {"8": 0.5, "1": 0.5}}},
        {"shares": 3},
        {"step_us": "slow"},
        {"step_us": -1},
        {"op_us": float("nan")},
        {"threads": None},
        {"threads": float("inf")},
        {"logit_ns": 1e300},
        {"reach": {"linear F32": {"bytes": 0, "operations": 1}}},
        {"reach": {"linear F32": {"bytes": 1}}},
    ],
)
def test_what_is_not_a_calibration_is_refused_in_one_sentence(damage: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"^here\.json is not a calibration .*calibrate anew\.$"):
        Calibration.from_dict(PERFECT.to_dict() | damage, "here.json")
    with pytest.raises(UsageError):
        Calibration.from_dict({}, "here.json")
