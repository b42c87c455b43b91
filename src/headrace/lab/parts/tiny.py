"""A Llama too small to be of use: what is left of a step when the model costs nothing."""

from __future__ import annotations

import numpy as np

from headrace.models.load import LoadedModel
from headrace.models.outline import outline_from_hf
from headrace.quant.formats import F32
from headrace.quant.tensor import HostTensor

CONTEXT = 1024


def tiny_model(seed: int = 0, *, hidden: int = 64, layers: int = 2) -> LoadedModel:
    """Random float32 weights, two layers of 4 heads, 256 ids; no file."""
    sizes = {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    described = outline_from_hf(sizes, source="the lab's tiny model")
    random = np.random.default_rng(seed)
    weights = {}
    for name, spec in described.weights.items():
        values = random.standard_normal((spec.rows, spec.columns)).astype(np.float32)
        values = 1 + 0.1 * values if len(spec.shape) == 1 else values / spec.columns**0.5
        data = np.ascontiguousarray(values, np.float32).view(np.uint8)
        weights[name] = HostTensor(F32, spec.shape, data.reshape(spec.rows, -1))
    return LoadedModel(described.config, described.family, weights, "the lab's tiny model")
