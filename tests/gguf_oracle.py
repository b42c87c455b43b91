"""A GGUF file as a `transformers` model: the outside opinion on real files.

Tensor names come from the `gguf` package's table, numbers from its dequantiser, and the model is
`transformers`' own, so nothing of Headrace's translation is involved except finding the bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from headrace.formats.checkpoint import open_checkpoint

_CLASSES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma3": "Gemma3TextConfig",
}


def transformers_model(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a GGUF file, dequantised to `dtype`, in evaluation mode (eager attention)."""
    checkpoint = open_checkpoint(path)
    arch, tensors = checkpoint.architecture, checkpoint.tensors
    config = _config(arch, checkpoint.metadata, tensors)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    state = {}
    for name in model.state_dict():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        kind = gguf.GGMLQuantizationType(stored.format.ggml_type)
        values = gguf.quants.dequantize(np.asarray(stored.data), kind).reshape(stored.shape)
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_" in name else config.num_key_value_heads
            pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values - np.float32(1)
        state[name] = torch.from_numpy(np.array(values)).to(dtype)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return model.to(dtype).eval()


def _config(arch: str, metadata: Any, tensors: Any) -> Any:
    def get(key: str) -> Any:
        return metadata.get(f"{arch}.{key}")

    heads, hidden = get("attention.head_count"), get("embedding_length")
    arguments = {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv") or heads,
        "head_dim": get("attention.key_length") or hidden // heads,
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if arch == "gemma3":
        arguments |= {"sliding_window": get("attention.sliding_window")}
        arguments |= {"query_pre_attn_scalar": arguments["head_dim"]}
    else:
        arguments |= {
            "rope_parameters": {"rope_type": "default", "rope_theta": get("rope.freq_base")}
        }
    return getattr(transformers, _CLASSES[arch])(**arguments)
