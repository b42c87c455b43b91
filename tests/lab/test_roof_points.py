"""roof_points: every op of a step is a point, and the kinds that are judged are sums of them."""

from __future__ import annotations

import pytest

from headrace.lab.parts.roof_points import of_kinds, points_of, table_of
from headrace.limits.op_rows import OpRow, by_place, op_rows
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.fuse import fuse
from headrace.ops.packed import activation_kind
from small_program import small_program

RATES = MachineRates(1e9, 4e9, 2e9, 1e9, 1, "avx2", 0)


def _rows(seconds: float) -> tuple[tuple[OpRow, ...], tuple[OpRow, ...]]:
    """(by place, by kind) of a step whose kernels all take as long."""
    program = small_program()
    cost = CostModel(program).step([Chunk(1, 9)])
    fused = fuse(CostModel(program).recording, lambda name: activation_kind(program.weights[name]))
    profile = [(op, seconds) for op in fused.segments[0]]
    return op_rows([profile], cost, RATES, naming=by_place), op_rows([profile], cost, RATES)


def test_kinds_are_sums_of_their_ops() -> None:
    places, kinds = _rows(1e-6)
    summed = {row.name: row for row in of_kinds(places)}
    assert set(summed) == {row.name for row in kinds}
    assert len(places) > len(kinds)
    for row in kinds:
        ours = summed[row.name]
        assert (ours.count, ours.num_bytes, ours.operations) == (
            row.count, row.num_bytes, row.operations,
        )  # fmt: skip
        assert ours.seconds == pytest.approx(row.seconds)
        assert ours.share == pytest.approx(row.share)
        assert ours.limit_s == pytest.approx(row.limit_s)


def test_every_op_of_a_layer_is_a_row_of_its_own() -> None:
    places, _ = _rows(1e-6)
    names = {row.name.split(": ")[-1] for row in places}
    assert {"qkv", "o", "gate", "up", "down", "head"} <= names, names
    layers = small_program().num_layers
    assert {row.count for row in places if row.name.endswith(": gate")} == {layers}


def test_points_are_medians_next_to_their_roof() -> None:
    profiles = [_rows(seconds)[0] for seconds in (2e-6, 1e-6, 9e-6)]
    points = {point.name: point for point in points_of(profiles)}
    assert set(points) == {row.name for row in profiles[0]}
    for row in profiles[0]:
        point = points[row.name]
        assert point.seconds == pytest.approx(row.seconds)  # the median of the three
        assert point.limit_s == pytest.approx(row.limit_s)
        if point.roof:
            assert point.speed / point.allowed == pytest.approx(point.roof.value)
    table = table_of("decode", list(points.values()))
    predicted, measured = (table.columns.index(f"{word} ms") for word in ("predicted", "measured"))
    for cells in table.rows:
        row = next(row for row in profiles[0] if row.name == cells[0])
        assert cells[predicted] == (pytest.approx(1e3 * row.limit_s) if row.limit_s else None)
        assert cells[measured] == pytest.approx(1e3 * row.seconds)
