"""GPT-2: multi-head attention with learned positions, biases everywhere, layer norms, a tied head.

    x = embed(tokens) + position_embed(positions)
    x = x + attention(layer_norm(x));  x = x + down(gelu(up(layer_norm(x))))     for every layer
    logits = embedᵀ(layer_norm(x))

Hugging Face stores its matrices as [input, output]; GGUF files as everything else, [output, input].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.models import blocks, describe
from headrace.models import fields as limits
from headrace.models.config import ModelConfig
from headrace.models.family import Family, TensorFacts
from headrace.models.fields import Fields
from headrace.models.weights import Axis, Transform, WeightSpec
from headrace.ops.contract import Ops, V


def trunk(ops: Ops[V], config: ModelConfig) -> V:
    x = ops.add(ops.embed("embed"), ops.embed("position_embed", index="positions"))
    width = config.num_heads * config.head_dim
    for i in range(config.num_layers):
        at = f"layers.{i}."
        with ops.layer(i):
            normed = ops.layer_norm(x, at + "attn_norm", at + "attn_norm.bias", config.norm_eps)
            q, k, v = ops.split(ops.linear(normed, at + "qkv", at + "qkv.bias"), [width] * 3)
            mixed = blocks.cached_attention(ops, config, i, q, k, v)
            x = ops.add(x, ops.linear(mixed, at + "o", at + "o.bias"))
            normed = ops.layer_norm(x, at + "mlp_norm", at + "mlp_norm.bias", config.norm_eps)
            raised = ops.gelu(ops.linear(normed, at + "up", at + "up.bias"))
            x = ops.add(x, ops.linear(raised, at + "down", at + "down.bias"))
    return x


def norm(ops: Ops[V], config: ModelConfig, hidden: V) -> V:
    return ops.layer_norm(hidden, "final_norm", "final_norm.bias", config.norm_eps)


def config_from_gguf(fields: Fields, facts: TensorFacts) -> ModelConfig:
    base = describe.from_gguf("gpt2", fields, facts, eps="attention.layer_norm_epsilon")
    if base.num_kv_heads != base.num_heads:
        raise fields.error("attention.head_count_kv", "differs from attention.head_count")
    return replace(base, num_positions=base.max_context, qkv_bias=True, output_bias=True)


def config_from_hf(fields: Fields) -> ModelConfig:
    gelu = ("gelu_new", "gelu_pytorch_tanh")
    fields.require("activation_function", gelu, absent="gelu_new")
    fields.require("scale_attn_weights", (True,), absent=True)
    fields.require("scale_attn_by_inverse_layer_idx", (False,), absent=False)
    fields.require("add_cross_attention", (False,), absent=False)
    heads = fields.count("n_head", limits.MAX_HEADS)
    hidden = fields.count("n_embd", limits.MAX_HIDDEN)
    num_layers = fields.count("n_layer", limits.MAX_LAYERS)
    head_dim = describe.head_dim_of(fields, "head_dim", "n_head", hidden, heads)
    positions = fields.count("n_positions", limits.MAX_CONTEXT)
    return ModelConfig(
        architecture="gpt2",
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=fields.count("n_inner", limits.MAX_INTERMEDIATE, default=4 * hidden),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size", limits.MAX_VOCAB),
        max_context=positions,
        norm_eps=fields.real("layer_norm_epsilon", 1e-12, 0.1, default=1e-5),
        windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        num_positions=positions,
        qkv_bias=True,
        output_bias=True,
    )


def weight_specs(config: ModelConfig) -> tuple[WeightSpec, ...]:
    e, v, p = config.hidden_size, config.vocab_size, config.max_context
    f, width = config.intermediate_size, config.num_heads * config.head_dim
    hidden = (Axis.HIDDEN,)
    found = [
        WeightSpec(
            "embed", (v, e), (Axis.VOCAB, *hidden), "token_embd.weight", "transformer.wte.weight"
        ),
        WeightSpec(
            "position_embed",
            (p, e),
            (Axis.POSITION, *hidden),
            "position_embd.weight",
            "transformer.wpe.weight",
        ),
        *_norm("final_norm", e, "output_norm", "transformer.ln_f"),
    ]
    if not config.tied_embeddings:
        axes = (Axis.VOCAB, Axis.HIDDEN)
        found.append(WeightSpec("lm_head", (v, e), axes, "output.weight", "lm_head.weight"))
    for i in range(config.num_layers):
        at, gguf, hf = f"layers.{i}.", f"blk.{i}.", f"transformer.h.{i}."
        found.extend(_norm(at + "attn_norm", e, gguf + "attn_norm", hf + "ln_1"))
        found.extend(_norm(at + "mlp_norm", e, gguf + "ffn_norm", hf + "ln_2"))
        for name, shape, axes, in_gguf, in_hf in (
            ("qkv", (3 * width, e), (Axis.QKV, Axis.HIDDEN), "attn_qkv", "attn.c_attn"),
            ("o", (e, width), (Axis.HIDDEN, Axis.HEADS), "attn_output", "attn.c_proj"),
            ("up", (f, e), (Axis.FFN, Axis.HIDDEN), "ffn_up", "mlp.c_fc"),
            ("down", (e, f), (Axis.HIDDEN, Axis.FFN), "ffn_down", "mlp.c_proj"),
        ):
            found.extend(_linear(at + name, shape, axes, gguf + in_gguf, hf + in_hf))
    return tuple(found)


def _norm(name: str, size: int, gguf: str, hf: str) -> Iterator[WeightSpec]:
    for ours, theirs in (("", ".weight"), (".bias", ".bias")):
        yield WeightSpec(name + ours, (size,), (Axis.HIDDEN,), gguf + theirs, hf + theirs)


def _linear(
    name: str, shape: tuple[int, int], axes: tuple[Axis, Axis], gguf: str, hf: str
) -> Iterator[WeightSpec]:
    yield WeightSpec(
        name,
        shape,
        axes,
        gguf + ".weight",
        hf + ".weight",
        hf_transform=Transform.TRANSPOSE,
    )
    yield WeightSpec(name + ".bias", shape[:1], axes[:1], gguf + ".bias", hf + ".bias")


FAMILY = Family(
    name="gpt2",
    config_from_gguf=config_from_gguf,
    config_from_hf=config_from_hf,
    weight_specs=weight_specs,
    trunk=trunk,
    norm=norm,
    hf_aliases=(("transformer.", ""),),
    ignored=("attn.bias", "attn.masked_bias"),
)
