"""The conditions of a measurement: what a figure must carry to be comparable (spec section 1).

Read from the system at the moment of asking; what cannot be read is None, never a guess.
"""

from __future__ import annotations

from typing import Any

from headrace.bench.cases import PROMPT_SEED
from headrace.bench.host import host_conditions
from headrace.engine.config import EngineConfig
from headrace.engine.model import OpenModel
from headrace.ops.numerics import NUMERICS_ID
from headrace.ops.packed import activation_kind


def machine_conditions() -> dict[str, Any]:
    """The host (bench/host.py) and the arithmetic of this version: JSON values."""
    return host_conditions() | {"numerics_id": NUMERICS_ID}


def activations_of(model: OpenModel) -> list[str]:
    """Number formats in which the model's matrices read what they multiply."""
    matrices = [t for t in model.program.weights.values() if t.rows > 1]
    return sorted({activation_kind(t).name.lower() for t in matrices})


def bench_conditions(model: OpenModel, config: EngineConfig, repetitions: int) -> dict[str, Any]:
    """`machine_conditions`, and everything about the model and the engine that a figure depends on;
    token counts, batch, depth and threads stand in the rows."""
    weights = model.program.weights.values()
    matrices = [t for t in weights if t.rows > 1]
    return machine_conditions() | {
        "model": model.name,
        "quantize": model.quantize,
        "model_bytes": model.weight_bytes,
        "weights": sorted({t.format.name for t in matrices}),
        "activations": activations_of(model),
        "kv_format": config.kv_format.value,
        "block_size": config.block_size,
        "kv_allocator": config.kv_allocator.value,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
        "path": "Engine.add and Engine.step: scheduling, sampling, detokenizing included",
        "model_load_included": False,
        "warm_up_included": False,
        "warm_up": "every test once, not counted",
        "device_synchronised": True,
        "repetitions": repetitions,
        "sampling": "greedy, ends of text ignored",
        "prompts": f"random token ids, seed {PROMPT_SEED}, no shared prefixes",
        "limit": "bound = max(bytes / bandwidth, operations / peak) of every step; matmuls at the "
        "int8 peak, attention at the bf16 peak",
    }
