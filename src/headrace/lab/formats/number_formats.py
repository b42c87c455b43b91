"""One model in many number formats, and how far its predictions move.

    file ─ unquantised ─▶ float32 matrices ─ in_format ─▶ the same model in q8_0, q4_0, …
    logits of both on the same text ─ compare ─▶ KL, Δ log-likelihood, top-1 agreement per chunk

A file that is quantised already is the reference as it stands: its numbers in float32, exactly.
What a format costs is then measured against those, not against what was lost before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.models.load import LoadedModel
from headrace.models.quantize import matrices, parse_format
from headrace.models.quantize import quantize as quantize_model
from headrace.quant import quantize as plain
from headrace.quant.dequantize import dequantize_bytes
from headrace.quant.formats import BF16, F16, F32, NumberFormat
from headrace.quant.tensor import HostTensor, PendingTensor

_PLAIN = {"bf16": BF16, "f16": F16}


def in_format(model: LoadedModel, name: str, threads: int) -> LoadedModel:
    """The model with the matrices of its linear layers in a format: "file" as it is, "f32", "bf16",
    "f16", or one of `--quantize`; always made from the file's numbers. Bytes are computed when they
    are packed. Raises UsageError for an unknown name."""
    if name == "file":
        return model
    floats = unquantised(model)
    if name == "f32":
        return floats
    if name in _PLAIN:
        weights = dict(floats.weights)
        for key, tensor in matrices(floats):
            weights[key] = _rounded(tensor, _PLAIN[name])
        return replace(floats, weights=weights)
    return quantize_model(floats, parse_format(name), threads=threads).model


def unquantised(model: LoadedModel) -> LoadedModel:
    """The file's own numbers, as float32; a tied head becomes a matrix of its own."""
    weights = dict(model.weights)
    for key, tensor in matrices(model):
        weights[key] = _floats(tensor)
    config = replace(model.config, tied_embeddings=False)
    return replace(model, config=config, weights=weights, identity=())


def _floats(tensor: HostTensor) -> HostTensor:
    if tensor.format is F32:
        return tensor

    def make() -> npt.NDArray[np.uint8]:
        return dequantize_bytes(tensor.data, tensor.format).view(np.uint8)

    return PendingTensor(tensor, F32, make)


def _rounded(tensor: HostTensor, target: NumberFormat) -> HostTensor:
    def make() -> npt.NDArray[np.uint8]:
        return plain.quantize(tensor.data.view(np.float32), target).data

    return PendingTensor(tensor, target, make)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of all matrices of linear layers. naive: codes alone. real: with scales and minima."""

    naive: float
    real: int
    formats: tuple[str, ...]


def sizes(model: LoadedModel) -> Sizes:
    """What the matrices take in the formats that they really have."""
    found = [tensor for _, tensor in matrices(model)]
    naive = sum(t.rows * t.columns * t.format.naive_bits / 8 for t in found)
    counts: dict[str, int] = {}
    for tensor in found:
        counts[tensor.format.name] = counts.get(tensor.format.name, 0) + tensor.num_bytes
    names = tuple(sorted(counts, key=lambda name: -counts[name]))
    return Sizes(naive, sum(t.num_bytes for t in found), names)


# ---- the worked example --------------------------------------------------------------------------


def affine(x: float, scale: float, zero_point: int) -> tuple[int, float]:
    """(q, x̂): q = round(x ÷ s) + z, x̂ = (q − z) · s."""
    q = round(x / scale) + zero_point
    return q, (q - zero_point) * scale


# ---- predictions next to each other --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moved:
    """One chunk of text. kl: mean KL(reference ‖ other), nats. loss, more_loss: nats per token of
    the text, and how much that is above the reference's. agrees: share of positions with the same
    first choice."""

    kl: float
    loss: float
    more_loss: float
    agrees: float


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Row by row, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def compare(
    reference: npt.NDArray[np.float32],
    other: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
) -> Moved:
    """Logits [N, V] of both at the same positions, and the tokens that follow, [N]."""
    log_p, log_q = log_softmax(reference), log_softmax(other)
    kl = float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean())
    rows = np.arange(len(targets))
    loss = float(-log_q[rows, targets].mean())
    more = loss + float(log_p[rows, targets].mean())
    agrees = float((reference.argmax(axis=1) == other.argmax(axis=1)).mean())
    return Moved(max(kl, 0.0), loss, more, agrees)
