"""Gemma 3, text: two kinds of layers with two KV groups and two rotary tables.

    x = √E · embed(tokens)
    x = x + norm(attention(norm(x)));  x = x + norm(gated_mlp(norm(x)))     for every layer
    logits = embedᵀ(norm(x))

Five layers with a sliding window (rotary base 10,000), then one with full attention (1,000,000).
Query and key heads are RMS-normalised; the gate is tanh-GELU; a head's width is not E / H. Norm
weights are canonical: GGUF files have the offset of 1 added already, Hugging Face files have not.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models import blocks, describe, llama, rotary, specs
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from headrace.models.weights import Transform, WeightSpec
from headrace.ops.contract import Activation, Ops, V

GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0
#: Every sixth layer has full attention.
PATTERN = 6
#: The one model (27B) whose scores are scaled by √(H / E) instead of D^−½ has this many layers.
LAYERS_OF_27B = 62


def trunk(ops: Ops[V], config: ModelConfig) -> V:
    assert config.rope is not None
    assert config.local_rope is not None
    eps = config.norm_eps
    x = ops.scale(ops.embed("embed"), config.embed_scale)
    for i in range(config.num_layers):
        rope = config.rope if config.windows[i] is None else config.local_rope
        with ops.layer(i):
            normed = ops.rms_norm(x, f"layers.{i}.attn_norm", eps)
            mixed = blocks.attention(ops, config, i, normed, rope=rope, qk_norm=True)
            x = ops.add(x, ops.rms_norm(mixed, f"layers.{i}.post_attn_norm", eps))
            normed = ops.rms_norm(x, f"layers.{i}.mlp_norm", eps)
            mixed = blocks.gated_mlp(ops, i, normed, Activation.GELU_TANH)
            x = ops.add(x, ops.rms_norm(mixed, f"layers.{i}.post_mlp_norm", eps))
    return x


def config_from_gguf(fields: Fields, facts: TensorFacts) -> ModelConfig:
    base = describe.from_gguf("gemma3", fields, facts)
    scale = base.attention_scale
    if base.num_layers == LAYERS_OF_27B:
        scale = (base.hidden_size / base.num_heads) ** -0.5
    local = fields.real("rope.freq_base_swa", rotary.MIN_BASE, rotary.MAX_BASE, default=LOCAL_BASE)
    return replace(
        base,
        windows=_windows_from_gguf(fields, base.num_layers),
        attention_scale=scale,
        rope=rotary.from_gguf(fields, base.head_dim, default_base=GLOBAL_BASE),
        local_rope=rotary.plain(base.head_dim, local),
        embed_scale=base.hidden_size**0.5,
        logit_soft_cap=_soft_cap(fields, "final_logit_softcapping"),
    )


def config_from_hf(fields: Fields) -> ModelConfig:
    fields.require("hidden_activation", ("gelu_pytorch_tanh",), absent="gelu_pytorch_tanh")
    fields.require("use_bidirectional_attention", (False,), absent=False)
    if fields.has("attn_logit_softcapping"):
        raise fields.error("attn_logit_softcapping", "is set, which Gemma 3 does not use")
    base = describe.from_hf("gemma3", fields, tied=True, head_dim=256)
    window = fields.count("sliding_window", MAX_CONTEXT, default=4096)
    pattern = fields.count("sliding_window_pattern", MAX_LAYERS, default=PATTERN)
    windows = _every(pattern, window, base.num_layers)
    bias = fields.flag("attention_bias", default=False)
    local = fields.real(
        "rope_local_base_freq", rotary.MIN_BASE, rotary.MAX_BASE, default=LOCAL_BASE
    )
    rope, local_rope = rotary.by_layer_type(
        fields, base.head_dim, base.max_context, GLOBAL_BASE, local
    )
    return replace(
        base,
        windows=describe.windows_from_hf(fields, windows, window),
        attention_scale=fields.real("query_pre_attn_scalar", 1e-6, 1e6, default=256) ** -0.5,
        rope=rope,
        local_rope=local_rope,
        embed_scale=base.hidden_size**0.5,
        logit_soft_cap=_soft_cap(fields, "final_logit_softcapping"),
        qkv_bias=bias,
        output_bias=bias,
    )


def weight_specs(config: ModelConfig) -> tuple[WeightSpec, ...]:
    plus_one = Transform.PLUS_ONE
    found = list(specs.outer(config, hf_norm=plus_one))
    norms = (
        ("attn_norm", "attn_norm", "input_layernorm"),
        ("post_attn_norm", "post_attention_norm", "post_attention_layernorm"),
        ("mlp_norm", "ffn_norm", "pre_feedforward_layernorm"),
        ("post_mlp_norm", "post_ffw_norm", "post_feedforward_layernorm"),
    )
    for i in range(config.num_layers):
        found.extend(specs.attention(config, i))
        found.extend(specs.qk_norms(config, i, hf_transform=plus_one))
        found.extend(specs.gated_mlp(config, i))
        for name, gguf, hf in norms:
            found.append(specs.norm(i, name, config.hidden_size, gguf, hf, hf_transform=plus_one))
    return tuple(found)


def _windows_from_gguf(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    if not fields.count("attention.sliding_window", MAX_CONTEXT, low=0, default=0):
        return (None,) * num_layers
    window = fields.count("attention.sliding_window", MAX_CONTEXT)
    name = "attention.sliding_window_pattern"
    listed = fields.flags(name, num_layers)
    if listed is not None:
        return tuple(window if sliding else None for sliding in listed)
    return _every(fields.count(name, MAX_LAYERS, default=PATTERN), window, num_layers)


def _every(pattern: int, window: int, num_layers: int) -> tuple[int | None, ...]:
    """Full attention in every `pattern`-th layer, a window in the others."""
    return tuple(window if (i + 1) % pattern else None for i in range(num_layers))


def _soft_cap(fields: Fields, name: str) -> float | None:
    # 0 means off in GGUF files.
    cap = fields.real(name, 0, 1e6, default=0.0)
    return cap or None


FAMILY = Family(
    name="gemma3",
    config_from_gguf=config_from_gguf,
    config_from_hf=config_from_hf,
    weight_specs=weight_specs,
    trunk=trunk,
    norm=llama.norm,
)
