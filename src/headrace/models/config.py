"""ModelConfig: everything a program needs to know about one model, whatever the file said.

Built by the family's own translation (`models/<family>.py`) from GGUF metadata or a Hugging Face
config.json; frozen; knows no file format and no device.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ops.contract import RopeSpec
from headrace.ops.kv import KVGroupSpec


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of a decoder-only transformer.

    windows[i]: sliding window of layer i, None = full attention. rope: for full layers; local_rope:
    for window layers (None = same as rope). num_positions: rows of a learned position table.
    eos_token_ids etc. belong to the tokenizer, not here.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    norm_eps: float
    windows: tuple[int | None, ...]
    attention_scale: float
    tied_embeddings: bool
    rope: RopeSpec | None = None
    local_rope: RopeSpec | None = None
    num_positions: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    embed_scale: float = 1.0
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None

    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """Layers by lifetime rule: one group per distinct window, full attention first."""
        kinds: list[int | None] = sorted(set(self.windows), key=lambda w: (w is not None, w or 0))
        return tuple(
            KVGroupSpec(
                name="full" if w is None else f"window{w}",
                layers=tuple(i for i, lw in enumerate(self.windows) if lw == w),
                kv_heads=self.num_kv_heads,
                k_dim=self.head_dim,
                v_dim=self.head_dim,
                window=w,
            )
            for w in kinds
        )

    def kv_place(self, layer: int) -> tuple[int, int]:
        """(group, layer inside the group) of a model layer."""
        for g, spec in enumerate(self.kv_groups()):
            if layer in spec.layers:
                return g, spec.layers.index(layer)
        raise AssertionError(f"layer {layer} is in no KV group")
