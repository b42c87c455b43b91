"""Models made up to be timed: Llama's program, any shape, any number format, weights of no meaning.

A kernel's time depends on shapes and formats, not on numbers, as long as these are ordinary ones: a
few rows are drawn and quantised, repeated to the matrix's size, and all layers have the same ones
until they are packed. So a machine can be calibrated without any model file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.models.load import LoadedModel
from headrace.models.outline import ModelOutline, outline_from_hf, uniform
from headrace.native import core
from headrace.ops.packed import NATIVE_FORMATS
from headrace.quant.formats import BF16, F16, F32, FORMATS, NumberFormat
from headrace.quant.tensor import HostTensor, TensorSpec

_DRAWN_ROWS = 64
#: Has no quantiser, and the block layout of this format.
_SAME_LAYOUT = {"IQ4_NL": "Q4_0"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns in multiples of 256, so that every number format's blocks fill them. The vocabulary
    is small: its matrix is the output head, too."""

    hidden: int = 1024
    intermediate: int = 4096
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    vocab: int = 4096
    context: int = 4096


def synthetic_model(shape: Shape, number_format: NumberFormat, weight_bytes: int) -> LoadedModel:
    """A model with about so many bytes of weights in `number_format`: at least two layers."""
    outer, one = (_outline(shape, number_format, layers=n) for n in (1, 2))
    layer_bytes = _bytes(one) - _bytes(outer)
    num_layers = max(2, round((weight_bytes - _bytes(outer)) / layer_bytes) + 1)
    outline = _outline(shape, number_format, layers=num_layers)
    random = np.random.default_rng(0)
    made: dict[tuple[str, tuple[int, ...]], HostTensor] = {}
    for spec in outline.weights.values():
        key = spec.format.name, spec.shape
        if key not in made:
            made[key] = _tensor(spec, random)
    weights = {name: made[w.format.name, w.shape] for name, w in outline.weights.items()}
    return LoadedModel(outline.config, outline.family, weights, "synthetic model")


def _outline(shape: Shape, number_format: NumberFormat, layers: int) -> ModelOutline:
    config: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": layers,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    return outline_from_hf(config, source="synthetic model", format_of=uniform(number_format))


def _bytes(outline: ModelOutline) -> int:
    return sum(spec.num_bytes for spec in outline.weights.values())


def _tensor(spec: TensorSpec, random: np.random.Generator) -> HostTensor:
    if spec.rows == 1:  # a norm: ones
        ones = np.ones(spec.columns, np.float32).view(np.uint8).reshape(1, -1)
        return HostTensor(spec.format, spec.shape, ones)
    drawn = _rows(spec, random)
    return HostTensor(spec.format, spec.shape, np.resize(drawn, (spec.rows, drawn.shape[1])))


def _rows(spec: TensorSpec, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Some rows of a matrix as its format stores them."""
    values = random.standard_normal((_DRAWN_ROWS, spec.columns)).astype(np.float32)
    values /= np.float32(spec.columns**0.5)
    stored: npt.NDArray[np.generic] = values
    if spec.format == F16:
        stored = values.astype(np.float16)
    elif spec.format == BF16:
        stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    raw = np.ascontiguousarray(stored).view(np.uint8)
    if spec.format in (F32, F16, BF16):
        return raw
    name = _SAME_LAYOUT.get(spec.format.name, spec.format.name)
    assert FORMATS[name].block_bytes == spec.format.block_bytes
    quantised: npt.NDArray[np.uint8] = core().quantize(
        NATIVE_FORMATS["F32"], raw, spec.columns, NATIVE_FORMATS[name], threads=1
    )
    return quantised
