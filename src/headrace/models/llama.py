"""Llama, and what is built like it: Mistral (sliding window), SmolLM2.

x = embed(tokens)
x = x + attention(rms_norm(x));  x = x + gated_mlp(rms_norm(x))     for every layer
logits = lm_head(rms_norm(x))
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models import blocks, describe, rotary, specs
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import MAX_CONTEXT, Fields
from headrace.models.weights import Transform, WeightSpec
from headrace.ops.contract import Activation, Ops, V


def trunk(ops: Ops[V], config: ModelConfig) -> V:
    assert config.rope is not None
    x = ops.embed("embed")
    for i in range(config.num_layers):
        with ops.layer(i):
            normed = ops.rms_norm(x, f"layers.{i}.attn_norm", config.norm_eps)
            x = ops.add(x, blocks.attention(ops, config, i, normed, rope=config.rope))
            normed = ops.rms_norm(x, f"layers.{i}.mlp_norm", config.norm_eps)
            x = ops.add(x, blocks.gated_mlp(ops, i, normed, Activation.SILU))
    return x


def norm(ops: Ops[V], config: ModelConfig, hidden: V) -> V:
    return ops.rms_norm(hidden, "final_norm", config.norm_eps)


def config_from_gguf(fields: Fields, facts: TensorFacts) -> ModelConfig:
    experts = fields.count("expert_count", 1 << 16, low=0, default=0)
    if experts:
        raise fields.error("expert_count", f"is {experts}; mixtures of experts are not supported")
    base = describe.from_gguf("llama", fields, facts)
    window = fields.count("attention.sliding_window", MAX_CONTEXT, low=0, default=0) or None
    return replace(
        base,
        windows=(window,) * base.num_layers,
        rope=rotary.from_gguf(fields, base.head_dim, factors=facts.rope_factors),
        qkv_bias="blk.0.attn_q.bias" in facts.names,
        output_bias="blk.0.attn_output.bias" in facts.names,
    )


def config_from_hf(fields: Fields) -> ModelConfig:
    fields.require("hidden_act", ("silu",), absent="silu")
    fields.require("mlp_bias", (False,), absent=False)
    base = describe.from_hf("llama", fields)
    mistral = fields.text("model_type", default="llama") == "mistral"
    window = describe.window_from_hf(fields) if mistral else None
    bias = fields.flag("attention_bias", default=False)
    return replace(
        base,
        windows=(window,) * base.num_layers,
        rope=rotary.from_hf(fields, base.head_dim, base.max_context),
        qkv_bias=bias,
        output_bias=bias,
    )


def weight_specs(config: ModelConfig) -> tuple[WeightSpec, ...]:
    found = list(specs.outer(config))
    e = config.hidden_size
    for i in range(config.num_layers):
        found.append(specs.norm(i, "attn_norm", e, "attn_norm", "input_layernorm"))
        found.extend(specs.attention(config, i, qk=Transform.UNPERMUTE_ROPE))
        found.append(specs.norm(i, "mlp_norm", e, "ffn_norm", "post_attention_layernorm"))
        found.extend(specs.gated_mlp(config, i))
    return tuple(found)


FAMILY = Family(
    name="llama",
    config_from_gguf=config_from_gguf,
    config_from_hf=config_from_hf,
    weight_specs=weight_specs,
    trunk=trunk,
    norm=norm,
    ignored=("rotary_emb.inv_freq", "rope_freqs.weight"),
)
