"""Quantising a loaded model: which weights, to what, and what to say of it.

The matrices of linear layers become the wanted format; norms, biases and position tables stay.
Where rows do not divide into blocks of 256, a format with blocks of 32 takes a K-quant's place, as
in llama.cpp. The output matrix keeps at least 6 bits (Q6_K, or Q8_0 where rows do not divide), for
its errors reach the logits directly. The embedding is only gathered from and stays as the file has
it: exact, and no memory of ours. A tied model is untied for that: the gather reads the file, the
head is quantised.

Nothing is rounded here: weights become pending (quant/tensor.py) and are quantised one at a time
when they are packed. A weight that is already stored in as few bits is left alone.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.errors import UsageError
from headrace.models.load import LoadedModel
from headrace.ops.quantize import QUANTISERS, quantized
from headrace.quant.formats import (
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    NumberFormat,
)
from headrace.quant.tensor import HostTensor, TensorSpec

#: What takes a format's place where rows do not divide by 256.
FALLBACKS = {Q2_K: Q4_0, Q3_K: Q4_0, Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0}
_HEAD, _EMBEDDING, _POSITIONS = "lm_head", "embed", "position_embed"


@dataclass(frozen=True, slots=True)
class Choice:
    """One matrix that is quantised."""

    name: str
    source: NumberFormat
    target: NumberFormat

    @property
    def twice(self) -> bool:
        """Whether it was stored in a quantised format before."""
        return self.source.block_size > 1


@dataclass(frozen=True, slots=True)
class Quantized:
    """model: with pending weights. choices: what is quantised. kept: number of matrices left as
    they are. stored_bytes, result_bytes: of all matrices of linear layers, before and after."""

    model: LoadedModel
    wanted: NumberFormat
    choices: tuple[Choice, ...]
    kept: int
    stored_bytes: int
    result_bytes: int

    def describe(self) -> str:
        """One sentence for people."""
        if not self.choices:
            return (
                f"nothing to quantise to {self.wanted.name}: the {self.kept} matrices are stored "
                "in as few bits already, or their rows do not divide into blocks"
            )
        counts = Counter(choice.target.name for choice in self.choices)
        formats = ", ".join(f"{name} ×{count}" for name, count in counts.most_common())
        text = (
            f"quantised at load: {formats}"
            + (f", {self.kept} as stored" if self.kept else "")
            + f"; matrices {self.stored_bytes / 1e6:,.1f} MB → {self.result_bytes / 1e6:,.1f} MB"
        )
        if fallbacks := sum(c.target is FALLBACKS.get(self.wanted) for c in self.choices):
            text += f"; rows of {fallbacks} do not divide by 256, which {self.wanted.name} needs"
        if twice := sum(choice.twice for choice in self.choices):
            text += f"; {twice} were quantised before and are rounded a second time"
        return text


def parse_format(text: str, option: str = "quantize") -> NumberFormat:
    """A format by its name in any case. option: what asks for it. Raises UsageError with the names
    there are."""
    names = {f.name: f for f in QUANTISERS}
    found = names.get(text.upper())
    if found is None:
        near = difflib.get_close_matches(text.upper(), names, n=1)
        hint = f" Did you mean {near[0].lower()}?" if near else ""
        raise UsageError(
            f"{option} = {text!r} is unknown: {', '.join(name.lower() for name in names)}.{hint}"
        )
    return found


def quantize(model: LoadedModel, wanted: NumberFormat, *, threads: int | None = None) -> Quantized:
    """The model with its linear layers in `wanted`. threads: of the quantisers (default: all CPUs
    this process may use). Raises UsageError for a format without a quantiser."""
    if wanted not in QUANTISERS:
        raise UsageError(f"{wanted.name} has no quantiser.")
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    weights = dict(model.weights)
    config, choices, kept = model.config, [], 0
    stored_bytes = result_bytes = 0
    for name, tensor in matrices(model):
        target = format_for(tensor, wanted, head=name == _HEAD)
        stored_bytes += tensor.num_bytes
        if target is None:
            kept += 1
            result_bytes += tensor.num_bytes
            continue
        label = f"{model.source}: weight {name}"
        weights[name] = quantized(tensor, target, label, threads)
        result_bytes += weights[name].num_bytes
        choices.append(Choice(name, tensor.format, target))
        if name == _HEAD:
            config = replace(config, tied_embeddings=False)
    result = replace(model, config=config, weights=weights)
    return Quantized(result, wanted, tuple(choices), kept, stored_bytes, result_bytes)


def format_for(tensor: TensorSpec, wanted: NumberFormat, *, head: bool) -> NumberFormat | None:
    """What a matrix becomes; None: it stays as it is."""
    target = Q6_K if head and wanted.bits_per_weight < Q6_K.bits_per_weight else wanted
    if tensor.columns % target.block_size:
        target = FALLBACKS.get(target, target)
    if tensor.columns % target.block_size:
        return None
    if tensor.format.bits_per_weight <= target.bits_per_weight:
        return None
    return target


def matrices(model: LoadedModel) -> Iterator[tuple[str, HostTensor]]:
    """What linear layers multiply by; a tied head under the name of an untied one."""
    for name, tensor in model.weights.items():
        if len(tensor.shape) == 2 and name not in (_EMBEDDING, _POSITIONS):
            yield name, tensor
    if model.config.tied_embeddings:
        yield _HEAD, model.weights[_EMBEDDING]
