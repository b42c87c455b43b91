"""What decoder-only transformers share, as program: attention, gated MLP, output head.

An architecture file states only its differences and reads top to bottom; this file knows no
architecture. Letters: E hidden, H query heads, K KV heads, D head dim, V vocabulary.
"""

from __future__ import annotations

from headrace.models.config import ModelConfig
from headrace.ops.contract import Activation, Ops, RopeSpec, V


def attention(
    ops: Ops[V],
    config: ModelConfig,
    layer: int,
    x: V,
    *,
    rope: RopeSpec,
    qk_norm: bool = False,
) -> V:
    """Grouped-query attention with rotary positions: [T, E] → [T, E].

    Covers MHA (K = H) and MQA (K = 1). qk_norm: RMS norm of every query and key head before the
    rotation.
    """
    at = f"layers.{layer}."
    heads, kv_heads = config.num_heads, config.num_kv_heads
    q, k, v = (
        ops.linear(x, at + name, f"{at}{name}.bias" if config.qkv_bias else None) for name in "qkv"
    )
    if qk_norm:
        q = ops.rms_norm(q, at + "q_norm", config.norm_eps, groups=heads)
        k = ops.rms_norm(k, at + "k_norm", config.norm_eps, groups=kv_heads)
    q = ops.rope(q, heads, rope)
    k = ops.rope(k, kv_heads, rope)
    mixed = cached_attention(ops, config, layer, q, k, v)
    return ops.linear(mixed, at + "o", at + "o.bias" if config.output_bias else None)


def cached_attention(ops: Ops[V], config: ModelConfig, layer: int, q: V, k: V, v: V) -> V:
    """Stores k and v, then attends: q [T, H·D], k and v [T, K·D] → [T, H·D]."""
    group, place = config.kv_place(layer)
    ops.kv_write(k, v, group=group, layer=place, kv_heads=config.num_kv_heads)
    return ops.attend(
        q,
        group=group,
        layer=place,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        scale=config.attention_scale,
        window=config.windows[layer],
        soft_cap=config.attention_soft_cap,
    )


def gated_mlp(ops: Ops[V], layer: int, x: V, activation: Activation) -> V:
    """down(f(gate(x)) · up(x)): [T, E] → [T, E]. Source: Shazeer, arXiv:2002.05202."""
    at = f"layers.{layer}."
    gate, up = ops.linear(x, at + "gate"), ops.linear(x, at + "up")
    return ops.linear(ops.gated(gate, up, activation), at + "down")


def output_head(ops: Ops[V], config: ModelConfig, x: V) -> V:
    """Logits of normalised rows: [·, E] → [·, V], soft-capped where the model is."""
    logits = ops.linear(x, "embed" if config.tied_embeddings else "lm_head")
    return logits if config.logit_soft_cap is None else ops.soft_cap(logits, config.logit_soft_cap)
