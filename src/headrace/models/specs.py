"""What decoder-only transformers share, as weights: where each file keeps them and their shapes.

Names follow two conventions: llama.cpp's GGUF converter and Hugging Face transformers. Letters: E
hidden, F intermediate, H query heads, K KV heads, D head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.models.config import ModelConfig
from headrace.models.weights import Axis, Transform, WeightSpec

VOCAB, HIDDEN, FFN = Axis.VOCAB, Axis.HIDDEN, Axis.FFN


def outer(config: ModelConfig, *, hf_norm: Transform = Transform.NONE) -> Iterator[WeightSpec]:
    """Embedding, final norm and, if untied, the output matrix."""
    v, e = config.vocab_size, config.hidden_size
    yield WeightSpec(
        "embed", (v, e), (VOCAB, HIDDEN), "token_embd.weight", "model.embed_tokens.weight"
    )
    yield WeightSpec(
        "final_norm",
        (e,),
        (HIDDEN,),
        "output_norm.weight",
        "model.norm.weight",
        hf_transform=hf_norm,
    )
    if not config.tied_embeddings:
        yield WeightSpec("lm_head", (v, e), (VOCAB, HIDDEN), "output.weight", "lm_head.weight")


def attention(
    config: ModelConfig, layer: int, *, qk: Transform = Transform.NONE
) -> Iterator[WeightSpec]:
    """q, k, v, o and their biases. qk: what undoes the file's order of query and key rows."""
    e = config.hidden_size
    q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    plan = (
        ("q", q_out, Axis.HEADS, config.num_heads, qk),
        ("k", kv_out, Axis.KV_HEADS, config.num_kv_heads, qk),
        ("v", kv_out, Axis.KV_HEADS, config.num_kv_heads, Transform.NONE),
    )
    for name, out, axis, heads, transform in plan:
        gguf, hf = f"blk.{layer}.attn_{name}", f"model.layers.{layer}.self_attn.{name}_proj"
        yield WeightSpec(
            f"layers.{layer}.{name}",
            (out, e),
            (axis, HIDDEN),
            gguf + ".weight",
            hf + ".weight",
            gguf_transform=transform,
            heads=heads,
        )
        if config.qkv_bias:
            yield WeightSpec(
                f"layers.{layer}.{name}.bias",
                (out,),
                (axis,),
                gguf + ".bias",
                hf + ".bias",
                gguf_transform=transform,
                heads=heads,
            )
    gguf, hf = f"blk.{layer}.attn_output", f"model.layers.{layer}.self_attn.o_proj"
    yield WeightSpec(
        f"layers.{layer}.o", (e, q_out), (HIDDEN, Axis.HEADS), gguf + ".weight", hf + ".weight"
    )
    if config.output_bias:
        yield WeightSpec(f"layers.{layer}.o.bias", (e,), (HIDDEN,), gguf + ".bias", hf + ".bias")


def norm(
    layer: int,
    name: str,
    size: int,
    gguf: str,
    hf: str,
    *,
    hf_transform: Transform = Transform.NONE,
    axis: Axis = Axis.HIDDEN,
) -> WeightSpec:
    """One norm weight of a layer; gguf and hf: what stands between the layer's name and .weight."""
    return WeightSpec(
        f"layers.{layer}.{name}",
        (size,),
        (axis,),
        f"blk.{layer}.{gguf}.weight",
        f"model.layers.{layer}.{hf}.weight",
        hf_transform=hf_transform,
    )


def qk_norms(
    config: ModelConfig, layer: int, *, hf_transform: Transform = Transform.NONE
) -> Iterator[WeightSpec]:
    """The RMS norms of single query and key heads."""
    for name in "qk":
        yield norm(
            layer,
            f"{name}_norm",
            config.head_dim,
            f"attn_{name}_norm",
            f"self_attn.{name}_norm",
            hf_transform=hf_transform,
            axis=Axis.HEAD_DIM,
        )


def gated_mlp(config: ModelConfig, layer: int) -> Iterator[WeightSpec]:
    """gate, up, down."""
    e, f = config.hidden_size, config.intermediate_size
    for name in ("gate", "up", "down"):
        down = name == "down"
        yield WeightSpec(
            f"layers.{layer}.{name}",
            (e, f) if down else (f, e),
            (HIDDEN, FFN) if down else (FFN, HIDDEN),
            f"blk.{layer}.ffn_{name}.weight",
            f"model.layers.{layer}.mlp.{name}_proj.weight",
        )
