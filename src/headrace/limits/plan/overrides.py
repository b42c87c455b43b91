"""--set KEY=VALUE: a model's sizes, a hardware's numbers, or a constant of the plan, changed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from headrace.errors import UsageError
from headrace.limits.plan.hardware import NUMBERS, Hardware, with_number
from headrace.limits.plan.words import parse_count, parse_real
from headrace.models import fields
from headrace.models.config import ModelConfig
from headrace.models.outline import ModelOutline
from headrace.models.weights import WeightSpec
from headrace.ops.contract import RopeSpec, ShapeError
from headrace.ops.record import record
from headrace.quant.formats import BF16, F32, NumberFormat
from headrace.quant.tensor import TensorSpec

#: Sizes of a model, and the largest each may be.
SIZES: Mapping[str, int] = MappingProxyType(
    {
        "num_layers": fields.MAX_LAYERS,
        "hidden_size": fields.MAX_HIDDEN,
        "intermediate_size": fields.MAX_INTERMEDIATE,
        "num_heads": fields.MAX_HEADS,
        "num_kv_heads": fields.MAX_HEADS,
        "head_dim": fields.MAX_HEAD_DIM,
        "vocab_size": fields.MAX_VOCAB,
        "max_context": fields.MAX_CONTEXT,
    }
)
#: The words of config.json for them.
_HF_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "max_position_embeddings": "max_context",
        "tie_word_embeddings": "tied_embeddings",
    }
)
#: Constants of the plan: most tokens of a step, positions of a block.
CONSTANTS: Mapping[str, int] = MappingProxyType({"step_tokens": 1 << 20, "block_size": 4096})


@dataclass(frozen=True, slots=True)
class Overrides:
    """What --set changes, sorted by what it belongs to."""

    sizes: Mapping[str, int]
    tied: bool | None
    numbers: Mapping[str, float]
    constants: Mapping[str, int]


def parse_overrides(settings: Sequence[str]) -> Overrides:
    """KEY=VALUE texts → Overrides. Raises UsageError naming the key, and the nearest there are."""
    sizes: dict[str, int] = {}
    numbers: dict[str, float] = {}
    constants: dict[str, int] = {}
    tied: bool | None = None
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        key = _HF_WORDS.get(key, key)
        label = f"--set {key}"
        if not equals or not value:
            raise UsageError(f"--set {setting!r} must be KEY=VALUE, as num_kv_heads=8.")
        if key in SIZES:
            sizes[key] = parse_count(value, label, SIZES[key])
        elif key in CONSTANTS:
            constants[key] = parse_count(value, label, CONSTANTS[key])
        elif key in NUMBERS:
            numbers[key] = parse_real(value, label)
        elif key == "tied_embeddings":
            if value.lower() not in ("true", "false"):
                raise UsageError(f"{label} must be true or false, not {value!r}.")
            tied = value.lower() == "true"
        else:
            known = [*SIZES, "tied_embeddings", *NUMBERS, *CONSTANTS]
            near = difflib.get_close_matches(key, known, n=2, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
            raise UsageError(f"--set {key[:60]!r} is unknown: {hint}")
    if constants.get("block_size", 16) % 16:
        raise UsageError("--set block_size must be a multiple of 16.")
    return Overrides(sizes, tied, numbers, constants)


def changed_hardware(hardware: Hardware, overrides: Overrides) -> Hardware:
    """The hardware with the numbers of --set."""
    for name, value in overrides.numbers.items():
        hardware = with_number(hardware, name, value, "--set")
    return hardware


def changed_model(program: ModelOutline, overrides: Overrides) -> ModelOutline:
    """The model with other sizes. Weights keep their formats; a layer more is as the one that comes
    round. Raises UsageError for sizes that make no model."""
    changes: dict[str, object] = dict(overrides.sizes)
    if overrides.tied is not None:
        changes["tied_embeddings"] = overrides.tied
    if not changes:
        return program
    old = program.config
    config = replace(old, **changes)  # type: ignore[arg-type]
    windows = tuple(old.windows[i % old.num_layers] for i in range(config.num_layers))
    config = replace(config, windows=windows)
    if config.num_heads % config.num_kv_heads:
        raise UsageError(
            f"--set num_kv_heads: {config.num_kv_heads} does not divide the {config.num_heads} "
            "query heads."
        )
    if config.head_dim % 2:
        raise UsageError(f"--set head_dim must be even, not {config.head_dim}.")
    if config.head_dim != old.head_dim:
        config = replace(
            config, rope=_fitted(old.rope, config), local_rope=_fitted(old.local_rope, config)
        )
    if old.num_positions is not None:
        config = replace(config, num_positions=config.max_context)
    weights = {
        spec.name: TensorSpec(_format(program, spec), spec.shape)
        for spec in program.family.weight_specs(config)
    }
    changed = replace(program, config=config, weights=weights)
    try:
        record(changed)
    except ShapeError as error:
        name = program.family.name
        raise UsageError(f"--set: these sizes make no {name} model ({error}).") from None
    return changed


def _fitted(rope: RopeSpec | None, config: ModelConfig) -> RopeSpec | None:
    """A rotary table for another width of heads: only its size counts here."""
    return None if rope is None else RopeSpec(config.head_dim, (1.0,) * (config.head_dim // 2))


def _format(program: ModelOutline, spec: WeightSpec) -> NumberFormat:
    name = spec.name
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        name = f"layers.{int(layer) % program.num_layers}.{rest}"
    elif name == "lm_head" and name not in program.weights:
        name = "embed"
    found = program.weights[name].format if name in program.weights else F32
    return BF16 if spec.shape[-1] % found.block_size else found
