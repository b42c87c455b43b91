"""The canonical weight form: logical names, shapes, axis roles, and where each file keeps them.

One canonical form inside, whatever the file: matrices are [output, input]; Q/K rows are in the
HALF rotary layout; RMS norm weights multiply as they are (Gemma's +1 is already added).
Logical names: embed, position_embed, final_norm(.bias), lm_head, and per layer `layers.{i}.` +
attn_norm, q, k, v, qkv, o, q_norm, k_norm, post_attn_norm, mlp_norm, gate, up, down, post_mlp_norm
(biases: + ".bias").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.quant.tensor import HostTensor


class Axis(Enum):
    """What an axis counts; sharding, pruning and display go by role, never by name."""

    VOCAB = "vocab"
    HIDDEN = "hidden"
    HEADS = "heads"  # H · D
    KV_HEADS = "kv_heads"  # K · D
    QKV = "qkv"  # (H + 2K) · D
    FFN = "ffn"
    HEAD_DIM = "head_dim"
    POSITION = "position"


class Transform(Enum):
    """How a file's tensor becomes canonical."""

    NONE = "none"
    UNPERMUTE_ROPE = "unpermute_rope"  # GGUF llama: Q/K rows from INTERLEAVED to HALF, by row_order
    PLUS_ONE = "plus_one"  # Hugging Face Gemma norms: w + 1 in float32
    TRANSPOSE = "transpose"  # Hugging Face GPT-2 Conv1D: [in, out] → [out, in]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One logical weight. gguf / hf: the tensor's name in that kind of file. heads: for
    UNPERMUTE_ROPE. optional: may be absent (a tied head)."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    gguf: str
    hf: str
    gguf_transform: Transform = Transform.NONE
    hf_transform: Transform = Transform.NONE
    heads: int = 0
    optional: bool = False


class Checkpoint(Protocol):
    """What `formats/` hands over: an opened model file, untranslated.

    kind: "gguf" | "hf". architecture: the file's own name for it (GGUF general.architecture, HF
    model_type). metadata: GGUF key-values (arrays of numbers as numpy arrays, of strings as
    a lazily decoded Sequence[str]) or config.json.
    tensors: file name of the tensor → HostTensor with shape in row-major [rows, columns] order.
    """

    @property
    def kind(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, HostTensor]: ...
    @property
    def source(self) -> str:
        """What to call the file in messages."""
        ...


#: Logical name → tensor in canonical form.
Weights = Mapping[str, HostTensor]
