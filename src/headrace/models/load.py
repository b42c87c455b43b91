"""load: from an opened model file to a program bound to canonical weights.

    Checkpoint → catalog → family.config_from_… → family.weight_specs → canonical weights

Nothing is dequantised here and no large tensor is copied (only HF's transposed GPT-2 matrices are).
Every weight of the program is present with the right shape or the load fails and names it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from headrace.errors import ModelFileError
from headrace.models import catalog
from headrace.models.canonical import canonical, vector
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import MAX_VOCAB, Fields
from headrace.models.outline import ModelOutline
from headrace.models.weights import Checkpoint, Weights
from headrace.quant.tensor import HostTensor

log = logging.getLogger(__name__)

EMBEDDING = "token_embd.weight"
ROPE_FACTORS = "rope_freqs.weight"
#: Output matrices of tied models, which files may repeat.
HEADS = ("output.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class LoadedModel(ModelOutline):
    """A model ready for an interpreter (ops/program.py says what one sees).

    weights: logical name → tensor, views of the file where possible: valid while it stays mapped.
    warnings: sentences about what the file holds and the model does not use. identity: what tells
    its files from others, for caches of what is made from them; empty: not known.
    """

    weights: Weights
    source: str
    warnings: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()


def load(checkpoint: Checkpoint) -> LoadedModel:
    """Translates a model file. Raises ModelFileError; logs a warning for tensors nobody uses."""
    gguf = checkpoint.kind == "gguf"
    family = _family(checkpoint, gguf)
    config = _gguf_config(checkpoint, family) if gguf else _hf_config(checkpoint, family)
    specs = family.weight_specs(config)
    names = {s.name: s.gguf if gguf else _hf_name(checkpoint, family, s.hf) for s in specs}
    missing = [name for name in names.values() if name not in checkpoint.tensors]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileError(
            f"{checkpoint.source}: tensor {missing[0]}{more} of a {family.name} model is missing; "
            "the file is incomplete."
        )
    weights = {}
    for spec in specs:
        name = names[spec.name]
        transform = spec.gguf_transform if gguf else spec.hf_transform
        label = f"{checkpoint.source}: tensor {name}"
        weights[spec.name] = canonical(checkpoint.tensors[name], spec, transform, label)
    warnings = _unused(checkpoint, family, set(names.values()))
    for sentence in warnings:
        log.warning(sentence)
    return LoadedModel(config, family, weights, checkpoint.source, warnings)


def _family(checkpoint: Checkpoint, gguf: bool) -> Family:
    known = catalog.GGUF_ARCHITECTURES if gguf else catalog.HF_MODEL_TYPES
    family = known.get(checkpoint.architecture)
    if family is None:
        raise ModelFileError(
            f'{checkpoint.source}: architecture "{checkpoint.architecture[:60]}" is not supported; '
            f"supported are {', '.join(known)}."
        )
    return family


def _gguf_config(checkpoint: Checkpoint, family: Family) -> ModelConfig:
    fields = Fields(checkpoint.metadata, checkpoint.source, f"{checkpoint.architecture}.")
    embedding = checkpoint.tensors.get(EMBEDDING)
    if embedding is None:
        raise ModelFileError(
            f"{checkpoint.source}: tensor {EMBEDDING} is missing; the file is incomplete."
        )
    if len(embedding.shape) != 2 or not 0 < embedding.shape[0] <= MAX_VOCAB:
        raise ModelFileError(
            f"{checkpoint.source}: tensor {EMBEDDING} has shape {embedding.shape}, expected "
            f"a matrix of up to {MAX_VOCAB} rows."
        )
    table = checkpoint.tensors.get(ROPE_FACTORS)
    factors = None
    if table is not None:
        label = f"{checkpoint.source}: tensor {ROPE_FACTORS}"
        factors = tuple(float(f) for f in vector(table, label))
    facts = TensorFacts(embedding.shape[0], frozenset(checkpoint.tensors), factors)
    config = family.config_from_gguf(fields, facts)
    head = checkpoint.tensors.get(HEADS[0])
    repeated = head is not None and _same(head, embedding)
    return replace(config, tied_embeddings=True) if repeated else config


def _hf_config(checkpoint: Checkpoint, family: Family) -> ModelConfig:
    fields = Fields(checkpoint.metadata, checkpoint.source)
    if fields.has("quantization_config"):
        raise fields.error("quantization_config", "asks for a quantised form we do not read")
    config = family.config_from_hf(fields)
    if not config.tied_embeddings:
        return config
    # The flag says tied. A head tensor that the file has nevertheless counts where it differs, as
    # in transformers; where it does not, one copy serves both.
    untied = replace(config, tied_embeddings=False)
    specs = {spec.name: spec for spec in family.weight_specs(untied)}
    head, embedding = (
        checkpoint.tensors.get(_hf_name(checkpoint, family, specs[name].hf))
        for name in ("lm_head", "embed")
    )
    if head is None or embedding is None or _same(head, embedding):
        return config
    return untied


def _same(a: HostTensor, b: HostTensor) -> bool:
    """Whether two tensors hold the same bytes; ends at the first rows that differ."""
    if a.format != b.format or a.shape != b.shape:
        return False
    pieces = (slice(start, start + 256) for start in range(0, len(a.data), 256))
    return all(np.array_equal(a.data[rows], b.data[rows]) for rows in pieces)


def _hf_name(checkpoint: Checkpoint, family: Family, name: str) -> str:
    """The name under which the file has `name`: itself, or with another prefix."""
    if name not in checkpoint.tensors:
        for prefix, alias in family.hf_aliases:
            if name.startswith(prefix) and alias + name[len(prefix) :] in checkpoint.tensors:
                return alias + name[len(prefix) :]
    return name


def _unused(checkpoint: Checkpoint, family: Family, used: set[str]) -> tuple[str, ...]:
    """One sentence naming the tensors that the model has no place for."""
    unused = (n for n in checkpoint.tensors if n not in used and n not in HEADS)
    extra = [n for n in unused if not n.endswith(family.ignored)]
    if not extra:
        return ()
    shown = ", ".join(name[:60] for name in extra[:5])
    more = f" and {len(extra) - 5} more" if len(extra) > 5 else ""
    return (
        f"{checkpoint.source}: unknown tensor {shown}{more} is not part of a {family.name} model "
        "and is not used.",
    )
