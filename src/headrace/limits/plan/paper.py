"""The closed forms of the literature, for any Llama-like model (`--formula paper`).

    parameters  2·V·E + 3·E·F·L + (2·E·H·D + 2·E·K·D)·L        bytes: × bytes per parameter
    KV          2·S·K·D·L × bytes per number                    of one sequence of S positions
    step        (parameters + batch · KV) ÷ bandwidth           every parameter is read, also the
                                                                embedding table
    prompt      max(2 · parameters · tokens ÷ peak, bytes ÷ bandwidth)

No norms, no biases, no windows, no activations, no overhead. A tied embedding counts once.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.limits.plan.memory import MemoryPlan
from headrace.limits.plan.times import Limiter
from headrace.limits.rates import MachineRates
from headrace.models.config import ModelConfig
from headrace.models.outline import ModelOutline
from headrace.ops.kv import KVElement


@dataclass(frozen=True, slots=True)
class Paper:
    """The closed forms of one model. bytes_per_parameter: of its matrices, scales included."""

    config: ModelConfig
    kv_format: KVElement
    bytes_per_parameter: float

    @property
    def num_parameters(self) -> int:
        c = self.config
        tables = (1 if c.tied_embeddings else 2) * c.vocab_size * c.hidden_size
        mlp = 3 * c.hidden_size * c.intermediate_size * c.num_layers
        queries = 2 * c.hidden_size * c.num_heads * c.head_dim * c.num_layers
        keys = 2 * c.hidden_size * c.num_kv_heads * c.head_dim * c.num_layers
        return tables + mlp + queries + keys

    @property
    def parameter_bytes(self) -> float:
        return self.num_parameters * self.bytes_per_parameter

    @property
    def kv_bytes_per_position(self) -> int:
        c = self.config
        return 2 * c.num_kv_heads * c.head_dim * c.num_layers * self.kv_format.element_bytes

    def memory(self, context: int, concurrency: int) -> MemoryPlan:
        kv = concurrency * context * self.kv_bytes_per_position
        return MemoryPlan(round(self.parameter_bytes), kv, 0, 0)

    def step_bytes(self, context: int, concurrency: int) -> float:
        """Read in a step that generates a token for each sequence."""
        return self.parameter_bytes + concurrency * context * self.kv_bytes_per_position

    def tpot_s(self, context: int, concurrency: int, rates: MachineRates) -> float:
        return self.step_bytes(context, concurrency) / rates.read_bytes_per_s

    def ttft_s(self, prompt: int, rates: MachineRates, peak_ops_per_s: float) -> float:
        """Of one prompt alone."""
        compute = 2 * self.num_parameters * prompt / peak_ops_per_s
        return max(compute, self.step_bytes(prompt, 1) / rates.read_bytes_per_s)

    def decode_limiter(self, context: int, concurrency: int) -> Limiter:
        """What a step reads most; arithmetic is not in its form."""
        kv = concurrency * context * self.kv_bytes_per_position
        return Limiter("memory", "KV" if kv > self.parameter_bytes else "weights", 0.0)

    def prefill_limiter(self, prompt: int, rates: MachineRates, peak_ops_per_s: float) -> Limiter:
        """The longer of the two of `ttft_s`."""
        compute = 2 * self.num_parameters * prompt / peak_ops_per_s
        memory = self.step_bytes(prompt, 1) / rates.read_bytes_per_s
        shorter, longer = sorted((compute, memory))
        by = "compute" if compute >= memory else "memory"
        return Limiter(by, self.decode_limiter(prompt, 1).most, shorter / longer)

    def critical_positions(self) -> float:
        """Cached positions that weigh as much as the parameters."""
        return self.parameter_bytes / self.kv_bytes_per_position


def paper_of(program: ModelOutline, kv_format: KVElement) -> Paper:
    """The closed forms with the mean bytes per number of the program's matrices."""
    matrices = [w for w in program.weights.values() if len(w.shape) > 1]
    numbers = sum(w.rows * w.columns for w in matrices)
    return Paper(program.config, kv_format, sum(w.num_bytes for w in matrices) / numbers)
