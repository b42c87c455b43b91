"""Family: what one architecture file offers, as a value.

A family translates a model file's description into a ModelConfig, lists its weights, and is a
program in two parts: `trunk` (tokens → hidden [T, E]) and `norm` (the final norm on any rows of
hidden); the output head behind them is the same for all (blocks.output_head). This file fixes how
the parts make a step; it knows no device and no reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.models.config import ModelConfig
from headrace.models.fields import Fields
from headrace.models.weights import WeightSpec
from headrace.ops.contract import Ops, V


class Trunk(Protocol):
    """Tokens → hidden [T, E], every layer in its own `ops.layer` scope."""

    def __call__(self, ops: Ops[V], config: ModelConfig) -> V: ...


class Norm(Protocol):
    """The final norm on whatever rows it is given: [·, E] → [·, E]."""

    def __call__(self, ops: Ops[V], config: ModelConfig, hidden: V) -> V: ...


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a GGUF file says only through its tensors.

    vocab_size: rows of the embedding. names: every tensor. rope_factors: rope_freqs.weight, which
    divides the rotary frequencies (llama3 scaling comes this way), or None.
    """

    vocab_size: int
    names: frozenset[str]
    rope_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. Both config functions raise ModelFileError.

    hf_aliases: (prefix of a Hugging Face name in `weight_specs`, what some files write instead).
    ignored: endings of tensor names that carry nothing (mask buffers, for example).
    """

    name: str
    config_from_gguf: Callable[[Fields, TensorFacts], ModelConfig]
    config_from_hf: Callable[[Fields], ModelConfig]
    weight_specs: Callable[[ModelConfig], tuple[WeightSpec, ...]]
    trunk: Trunk
    norm: Norm
    hf_aliases: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
