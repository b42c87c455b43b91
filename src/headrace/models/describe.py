"""What decoder-only transformers share, as description: sizes from GGUF keys or config.json.

Each function returns a checked ModelConfig of the plainest kind (full attention, no biases, no
rotary table, scores scaled by D^−½); an architecture file replaces what is different about it.
"""

from __future__ import annotations

from headrace.models import fields as limits
from headrace.models.config import ModelConfig
from headrace.models.family import TensorFacts
from headrace.models.fields import Fields


def from_gguf(
    architecture: str,
    fields: Fields,
    facts: TensorFacts,
    *,
    eps: str = "attention.layer_norm_rms_epsilon",
) -> ModelConfig:
    """fields: the file's key-values behind the architecture's prefix. A file without an output
    matrix uses its embedding for it."""
    heads = fields.count("attention.head_count", limits.MAX_HEADS)
    hidden = fields.count("embedding_length", limits.MAX_HIDDEN)
    num_layers = fields.count("block_count", limits.MAX_LAYERS)
    head_dim = head_dim_of(fields, "attention.key_length", "attention.head_count", hidden, heads)
    value_dim = fields.count("attention.value_length", limits.MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise fields.error("attention.value_length", f"is {value_dim}, expected {head_dim} as keys")
    return ModelConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=fields.count("feed_forward_length", limits.MAX_INTERMEDIATE),
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, "attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=facts.vocab_size,
        max_context=fields.count("context_length", limits.MAX_CONTEXT),
        norm_eps=fields.real(eps, 1e-12, 0.1),
        windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        tied_embeddings="output.weight" not in facts.names,
    )


def from_hf(
    architecture: str, fields: Fields, *, tied: bool = False, head_dim: int | None = None
) -> ModelConfig:
    """tied, head_dim: what the model type assumes when config.json does not say; None = E / H."""
    heads = fields.count("num_attention_heads", limits.MAX_HEADS)
    hidden = fields.count("hidden_size", limits.MAX_HIDDEN)
    num_layers = fields.count("num_hidden_layers", limits.MAX_LAYERS)
    head_dim = head_dim_of(fields, "head_dim", "num_attention_heads", hidden, heads, head_dim)
    return ModelConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size", limits.MAX_INTERMEDIATE),
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size", limits.MAX_VOCAB),
        max_context=fields.count("max_position_embeddings", limits.MAX_CONTEXT),
        norm_eps=fields.real("rms_norm_eps", 1e-12, 0.1, default=1e-6),
        windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=tied),
    )


def window_from_hf(fields: Fields) -> int | None:
    """`sliding_window`, None if absent."""
    present = fields.has("sliding_window")
    return fields.count("sliding_window", limits.MAX_CONTEXT) if present else None


def windows_from_hf(
    fields: Fields, default: tuple[int | None, ...], window: int | None
) -> tuple[int | None, ...]:
    """Window of each layer by `layer_types`; `default` without that list."""
    kinds = fields.texts("layer_types", len(default))
    if kinds is None:
        return default
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.error("layer_types", f'names "{kind[:40]}", which is not supported')
    if window is None and "sliding_attention" in kinds:
        raise fields.error("sliding_window", "is missing although layer_types asks for it")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def qwen_windows_from_hf(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's rule: with use_sliding_window, layers from max_window_layers on have the window."""
    window = None
    if fields.flag("use_sliding_window", default=False):
        window = fields.count("sliding_window", limits.MAX_CONTEXT, default=4096)
    first = fields.count("max_window_layers", limits.MAX_LAYERS, low=0, default=28)
    default = tuple(window if i >= first else None for i in range(num_layers))
    return windows_from_hf(fields, default, window)


def _kv_heads(fields: Fields, name: str, heads: int) -> int:
    kv_heads = fields.count(name, limits.MAX_HEADS, default=heads)
    if heads % kv_heads:
        raise fields.error(name, f"is {kv_heads}, which does not divide the {heads} query heads")
    return kv_heads


def head_dim_of(
    fields: Fields, name: str, heads_name: str, hidden: int, heads: int, default: int | None = None
) -> int:
    """Width of a head: the field `name` where present, else `default`, else E / H. Even."""
    if default is None and not fields.has(name):
        if hidden % heads:
            problem = f"is {heads}, which does not divide the hidden size {hidden}"
            raise fields.error(heads_name, problem)
        default = hidden // heads
    head_dim = fields.count(name, limits.MAX_HEAD_DIM, low=2, default=default)
    if head_dim % 2 or head_dim > limits.MAX_HEAD_DIM:
        problem = f"is {head_dim}, expected an even number up to {limits.MAX_HEAD_DIM}"
        raise fields.error(name, problem)
    return head_dim
