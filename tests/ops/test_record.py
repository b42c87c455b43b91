"""Recording: misfits are refused with op, dimension and sizes; what is recorded can be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.ops.contract import Activation, RopeSpec, Rows, ShapeError
from headrace.ops.kv import KVGroupSpec
from headrace.ops.record import Recorder, record
from headrace.ops.recording import Linear, Value
from small_program import small_program

SHAPES = {"table": (50, 12), "w": (8, 12), "b": (8,), "norm": (12,), "head_norm": (6,)}
GROUP = KVGroupSpec("full", (0, 3), 2, 6, 4)

Calls = Callable[[Recorder, Value], object]

MISFITS: dict[str, tuple[Calls, str]] = {
    "unknown weight": (lambda r, x: r.linear(x, "nobody"), "weight nobody"),
    "linear K": (lambda r, x: r.linear(r.linear(x, "w"), "w"), "linear w: K is 8, not 12"),
    "linear vector": (lambda r, x: r.linear(x, "b"), r"shape \(8,\) is not a matrix"),
    "bias": (lambda r, x: r.linear(x, "w", "norm"), "N is 12, not 8"),
    "norm": (lambda r, x: r.rms_norm(x, "b", 1e-5), "rms_norm b: C / groups is 8, not 12"),
    "norm groups": (lambda r, x: r.rms_norm(x, "norm", 1e-5, groups=5), "12 columns in 5 groups"),
    "norm of matrix": (lambda r, x: r.rms_norm(x, "w", 1e-5), "is not a vector"),
    "layer norm": (lambda r, x: r.layer_norm(x, "norm", "b", 1e-5), "layer_norm b: C is 8"),
    "split": (lambda r, x: r.split(x, (5, 6)), "sum of columns is 11, not 12"),
    "split empty": (lambda r, x: r.split(x, (12, 0)), "a part of 0 columns"),
    "concat nothing": (lambda r, x: r.concat(()), "nothing to join"),
    "concat rows": (lambda r, x: r.concat((x, r.rows(x, Rows.LOGIT_ROWS))), "logit_rows and tok"),
    "add": (lambda r, x: r.add(x, r.linear(x, "w")), "add: C is 8, not 12"),
    "gated": (lambda r, x: r.gated(r.linear(x, "w"), x, Activation.SILU), "gated: C is 12, not 8"),
    "rope heads": (lambda r, x: r.rope(x, 5, RopeSpec(2, (1.0,))), "12 columns in 5 heads"),
    "rope dim": (lambda r, x: r.rope(x, 6, RopeSpec(4, (1.0, 1.0))), "heads of 2"),
    "rope frequencies": (lambda r, x: r.rope(x, 2, RopeSpec(4, (1.0,))), "with 1 frequencies"),
    "rope rows": (
        lambda r, x: r.rope(r.rows(x, Rows.PROMPT_ROWS), 2, RopeSpec(2, (1.0,))),
        "not on prompt_rows",
    ),
    "embed index": (lambda r, x: r.embed("table", "rows"), 'index "rows"'),
    "kv group": (lambda r, x: r.kv_write(x, x, group=1, layer=0, kv_heads=2), "no KV group 1"),
    "kv layer": (lambda r, x: r.kv_write(x, x, group=0, layer=2, kv_heads=2), "layer 2 of KV"),
    "kv heads": (lambda r, x: r.kv_write(x, x, group=0, layer=0, kv_heads=1), "K is 1, not 2"),
    "kv values": (lambda r, x: r.kv_write(x, x, group=0, layer=0, kv_heads=2), "K·Dv is 12, not 8"),
    "attend queries": (lambda r, x: attend(r, x, heads=4), "H·D is 12, not 24"),
    "attend heads": (lambda r, x: attend(r, r.split(x, (6, 6))[0], heads=1), "H mod K is 1"),
    "attend window": (lambda r, x: attend(r, x, heads=2, window=0), "window 0"),
}


def attend(r: Recorder, x: Value, heads: int, window: int | None = None) -> Value:
    return r.attend(x, group=0, layer=0, heads=heads, kv_heads=2, scale=1.0, window=window)


@pytest.mark.parametrize("case", MISFITS)
def test_a_misfit_names_the_op_and_the_dimension(case: str) -> None:
    def shape_of(name: str) -> tuple[int, ...]:
        if name not in SHAPES:
            raise ShapeError(f"weight {name}")
        return SHAPES[name]

    recorder = Recorder(shape_of, (GROUP,))
    call, message = MISFITS[case]
    x = recorder.embed("table")
    with pytest.raises(ShapeError, match=message):
        call(recorder, x)


def test_values_of_narrower_heads_are_fine() -> None:
    recorder = Recorder(lambda name: SHAPES[name], (GROUP,))
    x = recorder.embed("table")
    values, _ = recorder.split(x, (8, 4))
    recorder.kv_write(x, values, group=0, layer=1, kv_heads=2)
    assert attend(recorder, x, heads=2).columns == 2 * GROUP.v_dim


def test_an_output_is_named_once() -> None:
    recorder = Recorder(lambda name: SHAPES[name], ())
    x = recorder.embed("table")
    recorder.output("hidden", x)
    with pytest.raises(ShapeError, match="hidden"):
        recorder.output("hidden", x)


def test_a_recording_prints_and_lists_its_taps() -> None:
    program = small_program()
    recording = record(program)
    text = str(recording)
    assert "segment 1:" in text
    assert "layer 2" in text
    assert "output    logits = " in text
    assert text.count("attend(") == program.num_layers
    linears = [op for op in recording.segments[0] if isinstance(op, Linear)]
    taps = recording.linear_inputs()
    assert set(taps) == {op.weight for op in linears}
    assert taps["0.gate"] == taps["0.up"]
    assert {op.layer for op in linears} == {0, 1, 2, None}
