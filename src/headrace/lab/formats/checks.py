"""Whether rounding is right, number by number, before a model is rounded. Knows no model."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.lab.formats.number_formats import affine
from headrace.lab.lab import Lab
from headrace.lab.values import Check
from headrace.native import core
from headrace.ops.packed import NATIVE_FORMATS
from headrace.quant.dequantize import dequantize_bytes
from headrace.quant.formats import FORMATS, NumberFormat
from headrace.quant.quantize import quantize

_LEGACY = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
_K = ("Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")


def worked_example() -> Check:
    q, back = affine(5.2342, 0.1, 4)
    return Check(
        "the worked example: x = 5.2342, s = 0.1, z = 4",
        q == 56 and math.isclose(back, 5.2) and math.isclose(5.2342 - back, 0.0342),
        f"q = {q}, x̂ = {back:.4g}, error {5.2342 - back:.4f}",
    )


def round_trips(lab: Lab) -> list[Check]:
    """Every quantiser on random numbers: the native bytes, what they unpack to, and the error."""
    values = (lab.random().standard_normal((8, 512)) * 0.1).astype(np.float32)
    gguf: Any = importlib.import_module("gguf") if importlib.util.find_spec("gguf") else None
    same_bytes, same_floats, in_step = [], [], []
    for name in (*_LEGACY, *_K):
        kind = FORMATS[name]
        data = core().quantize(
            NATIVE_FORMATS["F32"], values.view(np.uint8), values.shape[1], NATIVE_FORMATS[name],
            threads=1,
        )  # fmt: skip
        back = dequantize_bytes(data, kind)
        if name in _LEGACY:
            same_bytes.append(bool((data == quantize(values, kind).data).all()))
        if gguf is not None:
            theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
            same_floats.append(bool((theirs == back).all()))
        in_step.append(float(np.abs(back - values).max()) <= _step(values, kind))
    checks = [
        Check("native quantisers = numpy's", all(same_bytes), f"bytes of {', '.join(_LEGACY)}"),
        Check(
            "a rounded number is within a step of the number", all(in_step),
            f"{len(in_step)} formats, step = range of the block ÷ (2^bits − 1)",
        ),
    ]  # fmt: skip
    if gguf is not None:
        what = f"{len(same_floats)} formats, equal floats"
        checks.append(Check("unpacked as the gguf package unpacks", all(same_floats), what))
    return checks


def _step(values: npt.NDArray[np.float32], kind: NumberFormat) -> float:
    """The widest a step of such a format may be: a block's range over its codes."""
    widest = 2 * float(np.abs(values).max())
    codes: int = 2**kind.naive_bits
    return widest / (codes - 1)
