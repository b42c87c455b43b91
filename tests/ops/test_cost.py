"""The cost interpreter: a program counted by hand, and what must hold for every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ops.contract import Ops, Rows, V
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, OpCost, Totals, Unit
from headrace.ops.kv import KVFormat, KVGroupSpec
from headrace.ops.native import NativeModel
from headrace.ops.recording import Attend, Embed, Gated, Linear, Op
from headrace.quant.formats import BF16, FORMATS, NumberFormat
from headrace.quant.tensor import TensorSpec
from small_program import WINDOW, small_program

SMALL = CostModel(small_program())
#: 3 tokens behind 42 positions and 1 token behind 6: T = 4.
TWO = (Chunk(3, 45), Chunk(1, 7))


def first(costs: tuple[OpCost, ...], kind: type[Op]) -> OpCost:
    return next(c for c in costs if isinstance(c.op, kind))


def test_a_small_program_by_hand() -> None:
    """E 40, F 72, H 6, K 2, D 10, V 101, 3 layers; float32 weights; bf16 KV."""
    costs = SMALL.step(TWO).ops
    by_kind = SMALL.step(TWO).by_kind()

    embed = first(costs, Embed)
    assert (embed.operations, embed.weight_bytes) == (0, 4 * 40 * 4)
    # Per layer: qkv 100 × 40, o 40 × 60, gate and up 72 × 40, down 40 × 72; the head 101 × 40
    # works on the last row of each chunk. The biases of down are one vector, read once.
    per_layer = 100 * 40 + 40 * 60 + 2 * 72 * 40 + 40 * 72
    assert by_kind["linear"].f32_operations == 2 * 4 * 3 * per_layer + 2 * 2 * 101 * 40
    assert by_kind["linear"].operations == by_kind["linear"].f32_operations
    assert by_kind["linear"].num_ops == 3 * 5 + 1
    # norm (40) is used by every norm and norm_bias (40) by every layer norm and down: once each.
    vectors = (40 + 40 + 10) * 4
    assert by_kind["linear"].weight_bytes == (3 * per_layer + 101 * 40) * 4
    assert SMALL.step(TWO).total.weight_bytes == (
        (3 * per_layer + 101 * 40) * 4 + vectors + embed.weight_bytes
    )
    # Full layers: 43 + 44 + 45 positions and 7; the window of 40: 40 + 40 + 40 and 7.
    pairs = [43 + 44 + 45 + 7, 40 + 40 + 40 + 7, 43 + 44 + 45 + 7]
    attends = [c for c in costs if isinstance(c.op, Attend)]
    assert [c.operations for c in attends] == [2 * (10 + 10) * 6 * p for p in pairs]
    assert {c.unit for c in attends} == {Unit.BF16}
    # One position of one layer: 2 heads of 10 + 10 numbers of 2 bytes.
    assert [c.kv_read_bytes for c in attends] == [80 * (42 + 6), 80 * (39 + 6), 80 * (42 + 6)]
    assert by_kind["kv_write"].kv_write_bytes == 3 * 4 * 80
    assert by_kind["kv_write"].kv_read_bytes == 0
    # Element-wise, per token: 5 operations for SILU(gate) · up, 9 with GELU; layer 0 has GELU.
    assert by_kind["gated"].operations == 4 * 72 * (9 + 5 + 5)
    assert by_kind["add"].operations == 3 * 2 * 4 * 40
    assert by_kind["rope"].operations == 3 * 3 * 4 * (60 + 20)
    # scale 1, GELU 8, copies nothing; the soft cap 3 on 2 rows of 101 logits.
    assert by_kind["unary"].operations == 4 * 40 * (1 + 3 * 8) + 2 * 101 * 3
    # Attention norms and layer norms of 4 × 40, head norms of 4 × 60, the final norm of 2 × 40.
    assert by_kind["rms_norm"].operations == 4 * (3 * 4 * (40 + 60) + 2 * 40)
    assert by_kind["layer_norm"].operations == 7 * 3 * 4 * 40
    assert by_kind["select"].operations == 0


def test_sums_by_layer_and_by_kind_are_the_total() -> None:
    cost = SMALL.step(TWO)
    assert set(cost.by_layer()) == {None, 0, 1, 2}
    for groups in (cost.by_layer(), cost.by_kind(), cost.grouped(lambda c: c.unit)):
        assert _sum(groups) == cost.total
    assert cost.total.num_bytes == sum(c.num_bytes for c in cost.ops)
    assert cost.total.operations == sum(c.operations for c in cost.ops)


def _sum(groups: Mapping[object, Totals]) -> Totals:
    fields = Totals.__dataclass_fields__
    return Totals(**{f: sum(getattr(t, f) for t in groups.values()) for f in fields})


def test_without_logits_the_head_is_not_read() -> None:
    with_head, without = SMALL.step(TWO), SMALL.step(TWO, num_logit_rows=0)
    dropped = with_head.total.weight_bytes - without.total.weight_bytes
    assert dropped == 101 * 40 * 4
    assert len(with_head.ops) - len(without.ops) == 4  # select, norm, linear, soft cap


def test_prompt_rows_share_the_weights_of_the_head() -> None:
    plain, scored = SMALL.step(TWO), SMALL.step(TWO, num_prompt_rows=3)
    assert scored.total.weight_bytes == plain.total.weight_bytes
    heads = [c for c in scored.ops if isinstance(c.op, Linear) and c.op.layer is None]
    assert [c.operations for c in heads] == [2 * 2 * 101 * 40, 2 * 3 * 101 * 40]
    alone = SMALL.step(TWO, num_logit_rows=0, num_prompt_rows=3)
    assert alone.total.weight_bytes == plain.total.weight_bytes


def test_an_embedding_never_costs_more_than_its_table() -> None:
    cost = SMALL.step([Chunk(500, 500)])
    assert first(cost.ops, Embed).weight_bytes == 101 * 40 * 4


class TestActivations:
    """Only values larger than the cache count: once when written, once per op that reads them."""

    def test_none_without_a_cache_size(self) -> None:
        assert SMALL.step([Chunk(500, 500)]).total.activation_bytes == 0

    def test_the_one_value_that_is_too_large(self) -> None:
        """Rows of 100 columns (qkv) take 1,600 bytes for 4 tokens, all others less."""
        model = CostModel(small_program(), cache_bytes=1599)
        moved = [c for c in model.step(TWO).ops if c.activation_bytes]
        # qkv is read through its parts, which are smaller than the cache.
        assert [c.activation_bytes for c in moved] == [1600] * 3
        assert all(isinstance(c.op, Linear) and c.op.weight.endswith(".qkv") for c in moved)
        assert CostModel(small_program(), cache_bytes=1600).step(TWO).total.activation_bytes == 0

    def test_writers_and_readers_both_pay(self) -> None:
        """Gate and up of layer 0: 4 × 72 × 4 = 1,152 bytes each."""
        model = CostModel(small_program(), cache_bytes=1151)
        gated = first(model.step(TWO).ops, Gated)
        assert gated.activation_bytes == 3 * 1152
        half = CostModel(small_program(), cache_bytes=575, activation_bytes=2)
        assert first(half.step(TWO).ops, Gated).activation_bytes == 3 * 576

    def test_selecting_rows_reads_only_those(self) -> None:
        model = CostModel(small_program(), cache_bytes=0)
        cost = model.step([Chunk(100, 100)])
        select = next(c for c in cost.ops if type(c.op).__name__ == "Select")
        assert select.activation_bytes == 2 * 40 * 4

    def test_new_entries_are_read_again_only_where_they_left_the_cache(self) -> None:
        """4 new positions of one layer: 320 bytes."""
        at = [CostModel(small_program(), cache_bytes=n).step(TWO) for n in (319, 320)]
        reads = [cost.total.kv_read_bytes for cost in at]
        assert reads[0] - reads[1] == 3 * 320
        assert reads[1] == SMALL.step(TWO).total.kv_read_bytes


@dataclass(frozen=True)
class OneLayer:
    """embed [V, E] → attention of H heads on K → linear [F, E], in two formats, without numbers."""

    fmt: NumberFormat = BF16
    e: int = 256
    f: int = 512
    heads: int = 4
    kv_heads: int = 4
    num_layers: int = 1
    max_context: int = 1 << 20

    @property
    def hidden_size(self) -> int:
        return self.f

    @property
    def vocab_size(self) -> int:
        return self.f

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        d = self.e // self.heads
        return (KVGroupSpec("full", (0,), self.kv_heads, d, d),)

    @property
    def weights(self) -> Mapping[str, TensorSpec]:
        return {
            "table": TensorSpec(BF16, (1000, self.e)),
            "w": TensorSpec(self.fmt, (self.f, self.e)),
        }

    def step(self, ops: Ops[V]) -> None:
        x = ops.embed("table")
        columns = self.e // self.heads * self.kv_heads
        kv, *_ = ops.split(x, (columns, self.e - columns)) if columns < self.e else (x,)
        ops.kv_write(kv, kv, group=0, layer=0, kv_heads=self.kv_heads)
        mixed = ops.attend(x, group=0, layer=0, heads=self.heads, kv_heads=self.kv_heads, scale=1.0)
        hidden = ops.linear(mixed, "w")
        ops.output("hidden", hidden)
        ops.output("logits", ops.rows(hidden, Rows.LOGIT_ROWS))

    def prompt_logits(self, ops: Ops[V], hidden: V) -> None:
        ops.output("logits", ops.rows(hidden, Rows.PROMPT_ROWS))

    def final_hidden(self, ops: Ops[V], hidden: V) -> None:
        ops.output("final", ops.rows(hidden, Rows.HIDDEN_ROWS))


def test_final_hidden_values_cost_a_norm() -> None:
    plain, pooled = SMALL.step(TWO), SMALL.step(TWO, num_hidden_rows=3)
    assert len(pooled.ops) - len(plain.ops) == 2  # rows, rms_norm
    assert pooled.total.operations - plain.total.operations == 3 * 4 * 40
    assert pooled.total.num_bytes == plain.total.num_bytes  # the head has read the same norm


@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_costs_what_gguf_files_store(name: str) -> None:
    """Against the gguf package's own table of block sizes."""
    kind = gguf.GGMLQuantizationType[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    cost = first(CostModel(OneLayer(fmt=FORMATS[name])).step([Chunk(3, 3)]).ops, Linear)
    assert cost.weight_bytes == 512 * 256 // block_size * block_bytes
    assert cost.format == name
    assert cost.operations == 2 * 3 * 512 * 256
    plain = {"F32": Unit.F32, "F16": Unit.BF16, "BF16": Unit.BF16}
    assert cost.unit is plain.get(name, Unit.INT8)


@pytest.mark.parametrize("kv_format", KVFormat)
def test_kv_costs_what_its_format_stores(kv_format: KVFormat) -> None:
    """256 key and 256 value numbers per position."""
    model = CostModel(OneLayer(), kv_format=kv_format)
    cost = model.step([Chunk(1, 101)])
    assert cost.total.kv_read_bytes == 100 * 512 * kv_format.element_bytes
    assert cost.total.kv_write_bytes == 512 * kv_format.element_bytes
    assert model.kv_bytes_per_position == 512 * kv_format.element_bytes
    f32 = kv_format is KVFormat.F32
    assert first(cost.ops, Attend).unit is (Unit.F32 if f32 else Unit.BF16)


class TestIntensity:
    """Spec 10: operations per number of 2 bytes, with nothing held in a cache."""

    @given(st.integers(1, 4096), st.sampled_from((256, 1024, 4096)), st.integers(1, 9000))
    def test_of_a_matmul(self, t: int, e: int, f: int) -> None:
        model = CostModel(OneLayer(e=e, f=f), cache_bytes=0, activation_bytes=2)
        cost = first(model.step([Chunk(t, t)]).ops, Linear)
        assert cost.operations / cost.num_bytes == pytest.approx(
            t * e * f / (t * e + e * f + t * f)
        )

    @given(st.sampled_from((1, 2, 4, 8)), st.integers(1, 100_000))
    def test_of_attention_in_decode(self, g: int, s: int) -> None:
        """g·S·T / (g·T + S) with T = 1: below g, whatever the context."""
        cost = self._attention(g, 1, s)
        assert cost.operations / cost.num_bytes == pytest.approx(g * s / (g + s))
        assert cost.operations < g * cost.num_bytes

    @given(st.sampled_from((1, 2, 4, 8)), st.integers(1, 4096))
    def test_of_attention_in_prefill(self, g: int, t: int) -> None:
        """S = T: the causal half (and the diagonal) of g·S·T / (g·T + S)."""
        cost = self._attention(g, t, t)
        half = (t + 1) / (2 * t)
        assert cost.operations / cost.num_bytes == pytest.approx(half * g * t * t / (g * t + t))

    @staticmethod
    def _attention(g: int, t: int, s: int) -> OpCost:
        program = OneLayer(heads=8, kv_heads=8 // g)
        model = CostModel(program, cache_bytes=0, activation_bytes=2)
        return first(model.step([Chunk(t, s)]).ops, Attend)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Chunk, ...]:
    contexts = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    return tuple(Chunk(draw(st.integers(1, c)), c) for c in contexts)


@settings(deadline=None)
@given(steps(), steps())
def test_requests_add_up_but_weights_are_read_once(
    some: tuple[Chunk, ...], others: tuple[Chunk, ...]
) -> None:
    a, b, both = (SMALL.step(chunks).total for chunks in (some, others, some + others))
    assert both.operations == a.operations + b.operations
    assert both.kv_read_bytes == a.kv_read_bytes + b.kv_read_bytes
    assert both.kv_write_bytes == a.kv_write_bytes + b.kv_write_bytes
    gathered = [min(sum(c.num_new for c in x), 101) * 160 for x in (some, others, some + others)]
    matrices = {t.weight_bytes - g for t, g in zip((a, b, both), gathered, strict=True)}
    assert matrices == {SMALL.weight_bytes}


@settings(deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_the_chunks_of_a_prompt_compute_what_the_whole_does(pieces: list[int]) -> None:
    whole = SMALL.step([Chunk(sum(pieces), sum(pieces))], num_logit_rows=0)
    parts = [
        SMALL.step([Chunk(n, sum(pieces[: i + 1]))], num_logit_rows=0) for i, n in enumerate(pieces)
    ]
    for kind, totals in whole.by_kind().items():
        assert totals.operations == sum(p.by_kind()[kind].operations for p in parts)
        assert totals.kv_write_bytes == sum(p.by_kind()[kind].kv_write_bytes for p in parts)


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_decode_grows_linearly_until_the_window_is_full(context: int) -> None:
    here, there = (SMALL.step([Chunk(1, c)]) for c in (context, context + 1))
    growing = 3 if context < WINDOW else 2  # layers
    assert there.total.kv_read_bytes - here.total.kv_read_bytes == growing * 80
    more = there.total.operations - here.total.operations
    assert more == growing * 2 * 20 * 6
    assert there.total.weight_bytes == here.total.weight_bytes


def test_counts_the_model_as_written_not_as_fused() -> None:
    program = small_program()
    native = NativeModel(program, num_threads=1)
    assert CostModel(program).recording == native.recording
    assert any(type(op).__name__ == "Matmul" for op in native.fused.ops())


def test_parameters_and_bytes_of_the_small_program() -> None:
    per_layer = 100 * 40 + 40 * 60 + 2 * 72 * 40 + 40 * 72
    assert SMALL.num_parameters == 3 * per_layer + 101 * 40 + 40 + 40 + 10
    assert SMALL.weight_bytes == 4 * SMALL.num_parameters
