"""A Llama-shaped model with random weights, and an engine on it: for what depends on shapes and
lengths alone, as memory and scheduling do."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from headrace.engine.admission import Vocabulary
from headrace.engine.config import EngineOptions, Machine, resolve
from headrace.engine.core import Engine
from headrace.engine.model import native_executor
from headrace.models.load import LoadedModel
from headrace.models.outline import outline_from_hf, uniform
from headrace.quant.formats import F32
from headrace.quant.tensor import HostTensor


def random_model(
    *,
    num_layers: int = 2,
    num_heads: int = 2,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    hidden_size: int = 32,
    vocab_size: int = 128,
    max_context: int = 4096,
    seed: int = 1,
) -> LoadedModel:
    """A program with float32 weights of about the usual size; the text it makes is noise."""
    config: dict[str, Any] = {
        "model_type": "llama",
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
    }
    source = f"a random model of {num_layers} layers"
    shape = outline_from_hf(config, source=source, format_of=uniform(F32))
    random = np.random.default_rng(seed)
    weights = {}
    for name, spec in shape.weights.items():
        if len(spec.shape) < 2:
            values = np.ones((spec.rows, spec.columns), np.float32)
        else:
            values = random.standard_normal((spec.rows, spec.columns), np.float32)
            values *= np.float32(spec.columns**-0.5)
        weights[name] = HostTensor(F32, spec.shape, values.view(np.uint8))
    return LoadedModel(shape.config, shape.family, weights, source)


def engine_on(program: LoadedModel, options: EngineOptions) -> Engine:
    """An engine on the native interpreter, as build_engine makes one for a model with a file."""
    config = resolve(options, program.kv_groups, program.max_context, Machine.probe(os.environ))
    executor = native_executor(program, config)
    return Engine(executor, Vocabulary(num_ids=program.vocab_size), config)
