"""ModelOutline: a model without its numbers. The program, shapes and formats; no bytes.

A config.json alone is enough for one, so the limit of a model can be known before it is fetched.
Loading (models/load.py) adds the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import ModelFileError
from headrace.models import blocks, catalog
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import MAX_VOCAB, Fields
from headrace.models.weights import WeightSpec
from headrace.ops.contract import Ops, Rows, V
from headrace.ops.kv import KVGroupSpec
from headrace.quant.formats import BF16, F32, NumberFormat
from headrace.quant.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """An ops.program.Outline. weights: logical name → shape and number format."""

    config: ModelConfig
    family: Family
    weights: Mapping[str, TensorSpec]

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        return self.config.kv_groups()

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_context(self) -> int:
        return self.config.max_context

    def step(self, ops: Ops[V]) -> None:
        """Tokens → outputs "hidden" [T, E] and "logits" [len(logit_rows), V]."""
        hidden = self.family.trunk(ops, self.config)
        ops.output("hidden", hidden)
        self._logits(ops, ops.rows(hidden, Rows.LOGIT_ROWS))

    def prompt_logits(self, ops: Ops[V], hidden: V) -> None:
        """ "hidden" [T, E] → output "logits" of some of the step's prompt rows."""
        self._logits(ops, ops.rows(hidden, Rows.PROMPT_ROWS))

    def final_hidden(self, ops: Ops[V], hidden: V) -> None:
        """ "hidden" [T, E] → output "final" of some of the step's rows: the final norm of them."""
        chosen = ops.rows(hidden, Rows.HIDDEN_ROWS)
        ops.output("final", self.family.norm(ops, self.config, chosen))

    def _logits(self, ops: Ops[V], chosen: V) -> None:
        normed = self.family.norm(ops, self.config, chosen)
        ops.output("logits", blocks.output_head(ops, self.config, normed))


def uniform(matrices: NumberFormat) -> Callable[[WeightSpec], NumberFormat]:
    """One format for all matrices; vectors (and matrices whose rows its blocks do not fill) keep
    plain numbers, as quantisers leave them."""

    def format_of(spec: WeightSpec) -> NumberFormat:
        if len(spec.shape) < 2:
            return F32
        return BF16 if spec.shape[-1] % matrices.block_size else matrices

    return format_of


def outline(
    family: Family, config: ModelConfig, format_of: Callable[[WeightSpec], NumberFormat]
) -> ModelOutline:
    """The model that `config` describes, with weights in the formats that format_of chooses."""
    specs = family.weight_specs(config)
    weights = {spec.name: TensorSpec(format_of(spec), spec.shape) for spec in specs}
    return ModelOutline(config, family, weights)


def outline_from_hf(
    config: Mapping[str, object],
    *,
    source: str = "config.json",
    format_of: Callable[[WeightSpec], NumberFormat] | None = None,
) -> ModelOutline:
    """The model of a Hugging Face config.json (default: bf16 matrices, float32 vectors).

    source: what to call it in messages. Raises ModelFileError.
    """
    fields = Fields(config, source)
    name = fields.text("model_type", default="")
    family = catalog.HF_MODEL_TYPES.get(name)
    if family is None:
        known = ", ".join(catalog.HF_MODEL_TYPES)
        raise ModelFileError(
            f'{source}: architecture "{name[:60]}" is not supported; supported are {known}.'
        )
    return outline(family, family.config_from_hf(fields), format_of or uniform(BF16))


def outline_from_gguf(
    architecture: str,
    metadata: Mapping[str, object],
    stored: Mapping[str, TensorSpec],
    *,
    source: str,
) -> ModelOutline:
    """The model of a GGUF file's header. stored: its tensors, by the file's names; an output matrix
    counts as one of its own. Vectors count as float32, which is what they become at load.

    source: what to call it in messages. Raises ModelFileError.
    """
    family = catalog.GGUF_ARCHITECTURES.get(architecture)
    if family is None:
        known = ", ".join(catalog.GGUF_ARCHITECTURES)
        raise ModelFileError(
            f'{source}: architecture "{architecture[:60]}" is not supported; supported are {known}.'
        )
    embedding = stored.get("token_embd.weight")
    if embedding is None or not 0 < embedding.rows <= MAX_VOCAB:
        raise ModelFileError(
            f"{source}: tensor token_embd.weight is missing, or has too many rows."
        )
    facts = TensorFacts(embedding.rows, frozenset(stored))
    config = family.config_from_gguf(Fields(metadata, source, f"{architecture}."), facts)
    weights = {}
    for spec in family.weight_specs(config):
        found = stored.get(spec.gguf)
        if found is None or found.shape != spec.shape:
            shape = "is missing" if found is None else f"has shape {found.shape}"
            raise ModelFileError(
                f"{source}: tensor {spec.gguf} {shape}, but a {family.name} model of its sizes "
                f"needs it as {spec.shape}."
            )
        weights[spec.name] = TensorSpec(F32, spec.shape) if len(spec.shape) < 2 else found
    return ModelOutline(config, family, weights)
