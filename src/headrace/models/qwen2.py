"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from headrace.models import describe, llama, rotary, specs
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import Fields
from headrace.models.weights import WeightSpec


def config_from_gguf(fields: Fields, facts: TensorFacts) -> ModelConfig:
    base = describe.from_gguf("qwen2", fields, facts)
    return replace(base, rope=rotary.from_gguf(fields, base.head_dim), qkv_bias=True)


def config_from_hf(fields: Fields) -> ModelConfig:
    fields.require("hidden_act", ("silu",), absent="silu")
    base = describe.from_hf("qwen2", fields)
    return replace(
        base,
        windows=describe.qwen_windows_from_hf(fields, base.num_layers),
        rope=rotary.from_hf(fields, base.head_dim, base.max_context),
        qkv_bias=True,
    )


def weight_specs(config: ModelConfig) -> tuple[WeightSpec, ...]:
    found = list(specs.outer(config))
    e = config.hidden_size
    for i in range(config.num_layers):
        found.append(specs.norm(i, "attn_norm", e, "attn_norm", "input_layernorm"))
        found.extend(specs.attention(config, i))
        found.append(specs.norm(i, "mlp_norm", e, "ffn_norm", "post_attention_layernorm"))
        found.extend(specs.gated_mlp(config, i))
    return tuple(found)


FAMILY = Family(
    name="qwen2",
    config_from_gguf=config_from_gguf,
    config_from_hf=config_from_hf,
    weight_specs=weight_specs,
    trunk=llama.trunk,
    norm=llama.norm,
    ignored=("rotary_emb.inv_freq",),
)
