"""Small models in training, for the tests of lab/training."""

from typing import Any

import numpy as np

from headrace.lab.training.batch import TokenBatch


def llama(**changes: Any) -> dict[str, Any]:
    """A config.json of a tiny llama with grouped heads."""
    return {
        "model_type": "llama",
        "vocab_size": 37,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    } | changes


def random_batch(seed: int, count: int = 3, length: int = 11, vocab: int = 37) -> TokenBatch:
    ids = np.random.default_rng(seed).integers(0, vocab, (count, length + 1))
    return TokenBatch(ids[:, :-1].copy(), ids[:, 1:].copy())
