"""Program: a model as an interpreter sees it, without knowing what models are.

`models/` supplies it (a LoadedModel is one); the interpreters of this room run or record it:

    step(ops)                    embed → layers → output("hidden") → rows → head → output("logits")
    prompt_logits(ops, hidden)   rows(hidden, PROMPT_ROWS) → head → output("logits")
    final_hidden(ops, hidden)    rows(hidden, HIDDEN_ROWS) → final norm → output("final")

The last two are recorded on their own, so that logits or final hidden values of many positions are
computed a few rows at a time after the step, from the hidden values that the step left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.ops.contract import Ops, V
from headrace.ops.kv import KVGroupSpec
from headrace.quant.tensor import HostTensor, TensorSpec


class Outline(Protocol):
    """A model that may lack its numbers: can be recorded and costed, not run. `weights` is in
    canonical form (models/weights.py)."""

    @property
    def weights(self) -> Mapping[str, TensorSpec]: ...
    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int:
        """Columns of the value that `step` names "hidden"."""
        ...

    @property
    def vocab_size(self) -> int:
        """Columns of "logits"."""
        ...

    @property
    def max_context(self) -> int:
        """Positions 0 … max_context − 1 are valid: what tables over positions must cover."""
        ...

    def step(self, ops: Ops[V]) -> None:
        """The whole step. Outputs: "hidden" [T, E], before the final norm, and "logits"
        [len(logit_rows), V]."""
        ...

    def prompt_logits(self, ops: Ops[V], hidden: V) -> None:
        """From "hidden" [T, E] of the step just run to "logits" of some of its prompt rows."""
        ...

    def final_hidden(self, ops: Ops[V], hidden: V) -> None:
        """From "hidden" [T, E] of the step just run to "final" of some of its rows: their hidden
        values after the final norm, what the output head reads."""
        ...


class Program(Outline, Protocol):
    """A model bound to its weights."""

    @property
    def weights(self) -> Mapping[str, HostTensor]: ...
