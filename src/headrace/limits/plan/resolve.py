"""MODEL → PlanModel: from a file's header, a config.json, an alias or a built-in description.

No weight is read: a GGUF file cut off after its header is enough. Positions (rotary scaling) cost
the same however they are computed, so what a file says of them is not looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.errors import ModelFileError, UsageError
from headrace.formats.aliases import ALIASES
from headrace.formats.files import check_regular, read_small_file, reason
from headrace.formats.gguf import open_gguf
from headrace.formats.gguf_header import MAGIC
from headrace.formats.safetensors_header import parse_json_object
from headrace.formats.sources import alias_path
from headrace.limits.plan.builtin import built_in_models
from headrace.limits.plan.formats import FP8, INT4, INT8, main_format, requantized
from headrace.models import catalog
from headrace.models.outline import ModelOutline, outline_from_gguf, outline_from_hf, uniform
from headrace.quant.formats import BF16, F16, F32, NumberFormat
from headrace.quant.tensor import TensorSpec

MAX_CONFIG_BYTES = 16 << 20
_DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16}
_POSITIONS = ("rope_scaling", "rope_parameters")
_STORED = ("dtype", "torch_dtype", "quantization_config")
#: Words of config.json that say how many experts a layer has.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
#: What Gemma 3's text_config leaves away where it is as in the first of them (transformers,
#: Gemma3TextConfig).
_GEMMA3_TEXT: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    }
)


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A model to plan with. name: as it was given. program: shapes and number formats of its
    weights. source: file, or page of the description. description: one line for people.
    servable: what to write after `headrace serve`; None where only a description is at hand."""

    name: str
    program: ModelOutline
    source: str
    description: str
    servable: str | None = None


def resolve_model(name: str) -> PlanModel:
    """name: a GGUF file, a config.json or its directory, an alias, or a built-in name. An alias
    that is not in the cache is not fetched. Raises UsageError or ModelFileError."""
    path = _existing(name)
    if path is not None:
        return _from_path(path, name)
    known = built_in_models()
    found = known.get(name.lower())
    alias = ALIASES.get(name)
    if alias is not None and (file := alias_path(alias)).exists():
        model = _from_path(file, name)
        return replace(
            model, servable=name, description=_describe(alias.about.split(",")[0], model.program)
        )
    if found is not None:
        label = f"built-in description of {found.name}"
        program = _from_config(found.config, label)
        source = f"{found.url} (read {found.read})" if found.read else found.url
        servable = name if alias is not None else None
        return PlanModel(name, program, source, _describe(found.title, program), servable)
    if alias is not None:
        raise ModelFileError(
            f"{name} is not in the cache, and its header is needed; fetch it once with: "
            f"headrace models pull {name}"
        )
    raise UsageError(_unknown(name, [*known, *ALIASES]))


def known_names() -> tuple[str, ...]:
    """What can be planned with by name now: aliases whose files are in the cache, then built-in
    descriptions."""
    there = [name for name, alias in ALIASES.items() if alias_path(alias).exists()]
    return tuple(dict.fromkeys([*there, *built_in_models()]))


def _existing(name: str) -> Path | None:
    """The path of that name, if there is something."""
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name[:80]!r} is no usable path: {error}.") from None
    if name.endswith((".gguf", ".json")) or name.startswith((".", "~", "/")):
        raise UsageError(f"{name} does not exist; check the path.")
    return None


def _unknown(name: str, known: Iterable[str]) -> str:
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name.lower().rpartition("/")[2], names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}."
    if name.startswith("hf:") or "/" in name:
        hint += " Of a Hub model, its config.json is enough: fetch that and give its path."
    return (
        f"There is no model {name[:80]!r}. {hint} A model is a GGUF file, a config.json or its "
        "directory, or one of the known names."
    )


def _from_path(path: Path, name: str) -> PlanModel:
    if path.is_dir():
        config = path / "config.json"
        if not config.exists():
            raise ModelFileError(
                f"{path} is a directory without config.json; give a GGUF file or a config.json."
            )
        servable = name if any(path.glob("*.safetensors")) else None
        return _from_json(config, name, servable)
    check_regular(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {reason(error)}.") from None
    if head.startswith(MAGIC):
        return _from_gguf(path, name)
    if head.lstrip().startswith(b"{"):
        return _from_json(path, name, None)
    raise ModelFileError(f"{path} is neither a GGUF file nor a config.json.")


def _from_gguf(path: Path, name: str) -> PlanModel:
    checkpoint = open_gguf(path, header_only=True)
    stored: dict[str, TensorSpec] = {}
    for tensor_name in checkpoint.tensors:
        tensor = checkpoint.tensors.describe(tensor_name)
        if tensor.format is None:
            raise ModelFileError(
                f"{path}: tensor {tensor_name[:60]} is stored as {tensor.format_name}, which "
                "Headrace does not read; plan with the model's config.json and --quant instead."
            )
        stored[tensor_name] = TensorSpec(tensor.format, tensor.shape)
    program = outline_from_gguf(
        checkpoint.architecture, checkpoint.metadata, stored, source=str(path)
    )
    title = checkpoint.metadata.get("general.name")
    title = title[:60] if isinstance(title, str) and title.isprintable() else Path(name).stem
    return PlanModel(name, program, str(path), _describe(title or name, program), name)


def _from_json(path: Path, name: str, servable: str | None) -> PlanModel:
    config = parse_json_object(read_small_file(path, MAX_CONFIG_BYTES), str(path))
    program = _from_config(config, str(path))
    title = path.parent.name if path.name == "config.json" else path.stem
    return PlanModel(name, program, str(path), _describe(title or name, program), servable)


def _from_config(config: Mapping[str, Any], source: str) -> ModelOutline:
    inner = config.get("text_config")
    if str(config.get("model_type")) not in catalog.HF_MODEL_TYPES and isinstance(inner, dict):
        gemma3 = inner.get("model_type") == "gemma3_text"
        stored = {key: config[key] for key in _STORED if key in config}
        config = {**stored, **(_GEMMA3_TEXT if gemma3 else {}), **inner}  # of one that also sees
    _refuse_other_kinds(config, source)
    words = {key: value for key, value in config.items() if key not in _POSITIONS}
    stored_in, quantised = _stored_as(config, source)
    program = outline_from_hf(words, source=source, format_of=uniform(stored_in))
    return program if quantised is None else requantized(program, quantised)


def _refuse_other_kinds(config: Mapping[str, Any], source: str) -> None:
    """Raises ModelFileError for what a sum over dense layers would get wrong, whatever model_type
    says."""
    kinds = []
    experts = max((n for key in _EXPERTS if isinstance(n := config.get(key), int)), default=0)
    if experts > 1:
        kinds.append(f"a mixture of {experts:,} experts")
    if config.get("kv_lora_rank") is not None:
        kinds.append("latent attention (MLA)")
    if kinds:
        raise ModelFileError(
            f"{source}: this model has {' and '.join(kinds)}, which headrace plan does not count: "
            "it plans dense models with ordinary KV caches only."
        )
    if "model_type" not in config:
        raise ModelFileError(f"{source} has no model_type, so nobody can say what model it is.")


def _stored_as(config: Mapping[str, Any], source: str) -> tuple[NumberFormat, NumberFormat | None]:
    """The format of a config.json's plain matrices, and that of its quantised ones, if any."""
    dtype = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    plain = _DTYPES.get(str(dtype).removeprefix("torch."), BF16)
    quantised = config.get("quantization_config")
    if quantised is None:
        return plain, None
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    bits = quantised.get("bits") if isinstance(quantised, dict) else None
    if method == "fp8":
        return plain, FP8
    if method in ("gptq", "awq") and bits in (4, 8):
        return plain, INT4 if bits == 4 else INT8
    name = f"quant_method {str(method)[:40]!r}" if method else "without a quant_method"
    raise ModelFileError(
        f"{source}: quantization_config {name} is not known here; remove it from the file and say "
        "--quant int4 (or fp8, int8, mxfp4, nvfp4) instead."
    )


def _describe(title: str, program: ModelOutline) -> str:
    config = program.config
    heads = f"{config.num_heads} query and {config.num_kv_heads} KV heads of {config.head_dim}"
    return (
        f"{title}: {program.family.name}, {config.num_layers} layers of {config.hidden_size}, "
        f"{heads}, weights in {main_format(program).name}"
    )
