"""Qwen3: Llama with an RMS norm on every query and key head, and a head dim of its own."""

from __future__ import annotations

from dataclasses import replace

from headrace.models import blocks, describe, llama, rotary, specs
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import Fields
from headrace.models.weights import WeightSpec
from headrace.ops.contract import Activation, Ops, V


def trunk(ops: Ops[V], config: ModelConfig) -> V:
    assert config.rope is not None
    x = ops.embed("embed")
    for i in range(config.num_layers):
        with ops.layer(i):
            normed = ops.rms_norm(x, f"layers.{i}.attn_norm", config.norm_eps)
            mixed = blocks.attention(ops, config, i, normed, rope=config.rope, qk_norm=True)
            x = ops.add(x, mixed)
            normed = ops.rms_norm(x, f"layers.{i}.mlp_norm", config.norm_eps)
            x = ops.add(x, blocks.gated_mlp(ops, i, normed, Activation.SILU))
    return x


def config_from_gguf(fields: Fields, facts: TensorFacts) -> ModelConfig:
    base = describe.from_gguf("qwen3", fields, facts)
    return replace(base, rope=rotary.from_gguf(fields, base.head_dim))


def config_from_hf(fields: Fields) -> ModelConfig:
    fields.require("hidden_act", ("silu",), absent="silu")
    base = describe.from_hf("qwen3", fields, head_dim=128)
    bias = fields.flag("attention_bias", default=False)
    return replace(
        base,
        windows=describe.qwen_windows_from_hf(fields, base.num_layers),
        rope=rotary.from_hf(fields, base.head_dim, base.max_context),
        qkv_bias=bias,
        output_bias=bias,
    )


def weight_specs(config: ModelConfig) -> tuple[WeightSpec, ...]:
    found = list(specs.outer(config))
    e = config.hidden_size
    for i in range(config.num_layers):
        found.append(specs.norm(i, "attn_norm", e, "attn_norm", "input_layernorm"))
        found.extend(specs.attention(config, i))
        found.extend(specs.qk_norms(config, i))
        found.append(specs.norm(i, "mlp_norm", e, "ffn_norm", "post_attention_layernorm"))
        found.extend(specs.gated_mlp(config, i))
    return tuple(found)


FAMILY = Family(
    name="qwen3",
    config_from_gguf=config_from_gguf,
    config_from_hf=config_from_hf,
    weight_specs=weight_specs,
    trunk=trunk,
    norm=llama.norm,
)
