"""Memory of one way to run a model: weights, KV pools, activations, overhead. Pure functions.

Every part grows with context and concurrency or stays: a plan never fits at one length, fails at a
longer one and fits again.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.sizing import plan_pools
from headrace.ops.kv import KVElement
from headrace.ops.program import Outline


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes. weights: as they lie in memory while the model runs. kv: the pools of blocks that the
    concurrency needs at the whole context. activations: buffers of the largest step. overhead: what
    the process takes whatever the model."""

    weights: int
    kv: int
    activations: int
    overhead: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.overhead

    def to_dict(self) -> dict[str, int]:
        return {
            "weights": self.weights,
            "kv": self.kv,
            "activations": self.activations,
            "overhead": self.overhead,
            "total": self.total,
        }


def plan_memory(
    program: Outline,
    *,
    context: int,
    concurrency: int,
    kv_format: KVElement,
    step_tokens: int,
    packed: bool,
    block_size: int = 16,
) -> MemoryPlan:
    """Memory for `concurrency` sequences of `context` positions each, in steps of at most
    step_tokens tokens. packed: weights as the native kernels keep them; otherwise as stored."""
    pools = plan_pools(
        program.kv_groups,
        kv_format,
        block_size,
        budget_bytes=None,
        max_model_len=context,
        max_num_seqs=concurrency,
        max_chunk=step_tokens,
        frees_window=True,
    )
    weights = sum(w.num_bytes for w in program.weights.values())
    return MemoryPlan(weights, pools.total_bytes, 0, 0)
