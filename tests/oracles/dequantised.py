"""A GGUF file as a float32 `transformers` model: the outside implementation of the recordings.

Reading, dequantising and naming are done with the `gguf` package and the table below; nothing of
headrace takes part. Weights are dequantised one at a time into the model's own memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.initialization import no_init_weights

GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
GEMMA_LAYER = LAYER | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class Metadata:
    """The fields of one architecture, by their short names."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields
        self.architecture: str = self("general.architecture")

    def __call__(self, name: str, default: Any = None) -> Any:
        field = self._fields.get(name)
        return default if field is None else field.contents()

    def own(self, name: str, default: Any = None) -> Any:
        return self(f"{self.architecture}.{name}", default)


def load_model(path: Path) -> PreTrainedModel:
    """The model of a GGUF file in float32, on the CPU, in evaluation mode."""
    reader = gguf.GGUFReader(path)
    metadata = Metadata(reader)
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    vocab_size = int(shapes["token_embd.weight"][1])
    tied = "output.weight" not in shapes
    with no_init_weights():
        model = _empty_model(metadata, vocab_size, tied)
    if tied:
        model.tie_weights()
    parameters = dict(model.named_parameters())  # a tied head is listed once
    missing = set(parameters)
    with torch.no_grad():
        for name, values in _weights(reader, metadata):
            parameters[name].copy_(torch.from_numpy(values))  # KeyError: a name we do not know
            missing.remove(name)
    if missing:
        raise ValueError(f"{path} lacks {sorted(missing)}")
    return model.eval()


def _empty_model(metadata: Metadata, vocab_size: int, tied: bool) -> PreTrainedModel:
    heads = metadata.own("attention.head_count")
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": metadata.own("embedding_length"),
        "intermediate_size": metadata.own("feed_forward_length"),
        "num_hidden_layers": metadata.own("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.own("attention.head_count_kv"),
        "head_dim": metadata.own("attention.key_length", metadata.own("embedding_length") // heads),
        "rms_norm_eps": metadata.own("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.own("context_length"),
        "tie_word_embeddings": tied,
        "attn_implementation": "eager",
        "dtype": torch.float32,
    }
    rope = {"rope_type": "default", "rope_theta": metadata.own("rope.freq_base")}
    if metadata.architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(rope_parameters=rope, **common))
    if metadata.architecture == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(rope_parameters=rope, **common))
    if metadata.architecture == "gemma3":
        return Gemma3ForCausalLM(_gemma3_config(metadata, rope, common))
    raise ValueError(f"no transformers model for architecture {metadata.architecture}")


def _gemma3_config(
    metadata: Metadata, rope: dict[str, Any], common: dict[str, Any]
) -> Gemma3TextConfig:
    """Every sixth layer is global; local layers rotate with base 10,000 (Gemma 3 report)."""
    kinds = [
        "full_attention" if i % 6 == 5 else "sliding_attention"
        for i in range(common["num_hidden_layers"])
    ]
    return Gemma3TextConfig(
        layer_types=kinds,
        sliding_window=metadata.own("attention.sliding_window"),
        query_pre_attn_scalar=common["head_dim"],
        hidden_activation="gelu_pytorch_tanh",
        rope_parameters={
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        **common,
    )


def _weights(reader: gguf.GGUFReader, metadata: Metadata) -> Iterator[tuple[str, np.ndarray]]:
    layer_names = GEMMA_LAYER if metadata.architecture == "gemma3" else LAYER
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        if tensor.name in GLOBAL:
            name = GLOBAL[tensor.name]
        else:
            _, index, kind, suffix = tensor.name.split(".")
            name = f"model.layers.{index}.{layer_names[kind]}.{suffix}"
            if metadata.architecture == "llama" and kind in ("attn_q", "attn_k"):
                own = "attention.head_count" + ("_kv" if kind == "attn_k" else "")
                values = _halves(values, metadata.own(own))
        if metadata.architecture == "gemma3" and name.endswith("norm.weight"):
            values = values - np.float32(1)  # transformers multiplies by 1 + weight
        yield name, values


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (pair, half) order, as GGUF has them for llama, to (half, pair)."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)
