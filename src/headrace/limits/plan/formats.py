"""Number formats to plan with: those that Headrace computes with, and what other engines serve in.

`requantized` says what a model's weights become in another format. It follows what loading with
--quantize does (models/quantize.py): the matrices of linear layers change, the output matrix keeps
at least 6 bits, the embedding and vectors stay.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from headrace.errors import UsageError
from headrace.models.outline import ModelOutline
from headrace.models.quantize import format_for
from headrace.ops.kv import KVElement, KVFormat
from headrace.quant.formats import BF16, F16, F32, FORMATS, NumberFormat
from headrace.quant.tensor import TensorSpec

#: Formats of other engines, of which only sizes are known here (no GGML type). INT8: one scale per
#: row, which is not counted. INT4: groups of 128 with a 16-bit scale and a zero point of 4 bits.
#: MXFP4: groups of 32 with a scale of 8 bits. NVFP4: groups of 16 with a scale of 8 bits.
FP8 = NumberFormat("FP8", -1, 1, 1)
INT8 = NumberFormat("INT8", -2, 1, 1)
INT4 = NumberFormat("INT4", -3, 256, 133)
MXFP4 = NumberFormat("MXFP4", -4, 32, 17)
NVFP4 = NumberFormat("NVFP4", -5, 16, 9)
OTHERS: Mapping[str, NumberFormat] = MappingProxyType(
    {f.name: f for f in (FP8, INT8, INT4, MXFP4, NVFP4)}
)
_PLAIN = (F32, F16, BF16)
_EMBEDDINGS = ("embed", "position_embed")


@dataclass(frozen=True, slots=True)
class Fp8KV:
    """Keys and values of one byte, as GPU engines keep them; one scale per tensor, not counted."""

    value: str = "fp8"
    element_bytes: int = 1


def weight_format(name: str) -> NumberFormat:
    """A format by its name in any case. Raises UsageError with the nearest ones."""
    known = {**FORMATS, **OTHERS}
    found = known.get(name.upper())
    if found is None:
        near = difflib.get_close_matches(name.upper(), known, n=2, cutoff=0.5) or known
        raise UsageError(
            f"--quant {name!r} is unknown; did you mean {' or '.join(near).lower()}?"
            if len(near) < len(known)
            else f"--quant {name!r} is unknown: {', '.join(known).lower()}."
        )
    return found


def kv_format(name: str) -> KVElement:
    """A format of the KV cache by its name in any case. Raises UsageError with those there are."""
    wanted = name.lower()
    for known in KVFormat:
        if known.value == wanted:
            return known
    if wanted == "fp8":
        return Fp8KV()
    names = ", ".join(f.value for f in KVFormat)
    raise UsageError(f"--kv-cache-dtype {name!r} is unknown: {names} or fp8.")


def main_format(program: ModelOutline) -> NumberFormat:
    """The format of most matrix numbers, embeddings aside."""
    counts: Counter[NumberFormat] = Counter()
    for name, weight in program.weights.items():
        if len(weight.shape) > 1 and name not in _EMBEDDINGS:
            counts[weight.format] += weight.rows * weight.columns
    return counts.most_common(1)[0][0]


def requantized(program: ModelOutline, wanted: NumberFormat) -> ModelOutline:
    """The model with its linear layers in `wanted`; every matrix for F32, F16 and BF16."""
    weights: dict[str, TensorSpec] = dict(program.weights)
    matrices = {n: w for n, w in weights.items() if len(w.shape) == 2}
    if wanted in _PLAIN:
        weights |= {name: TensorSpec(wanted, w.shape) for name, w in matrices.items()}
        return replace(program, weights=weights)
    linear = {n: w for n, w in matrices.items() if n not in _EMBEDDINGS}
    if wanted in OTHERS.values():  # those engines leave the output matrix alone
        for name, weight in linear.items():
            if name != "lm_head" and weight.columns % wanted.block_size == 0:
                weights[name] = TensorSpec(wanted, weight.shape)
        return replace(program, weights=weights)
    config = program.config
    if config.tied_embeddings:
        linear["lm_head"] = weights["embed"]
    for name, weight in linear.items():
        target = format_for(weight, wanted, head=name == "lm_head")
        if target is not None:
            weights[name] = TensorSpec(target, weight.shape)
            if name == "lm_head":
                config = replace(config, tied_embeddings=False)
    return replace(program, config=config, weights=weights)
