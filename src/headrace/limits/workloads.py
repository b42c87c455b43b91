"""The limits of the standard measurements: prompts, generation alone and in batches.

Steps depend on each other (a step needs the token of the one before), so the limit of a run is the
sum of its steps' limits. Each function says which steps it assumes: always the fewest, because the
fewest read the weights least often; an engine that takes more steps is measured against the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.limits.bound import Bound, Peaks, bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, StepCost


@dataclass(frozen=True, slots=True)
class RunLimit:
    """The limit of a run of steps. bound_s, serial_s: sums over the steps. num_tokens: what the
    measurement counts. memory_bound_share: part of bound_s spent in steps that memory limits."""

    num_tokens: int
    bound_s: float
    serial_s: float
    memory_bound_share: float

    @property
    def tok_per_s(self) -> float:
        """The most tokens per second that the bound allows."""
        return self.num_tokens / self.bound_s

    @property
    def serial_tok_per_s(self) -> float:
        return self.num_tokens / self.serial_s


def prefill_steps(model: CostModel, num_tokens: int, *, depth: int = 0) -> Iterator[StepCost]:
    """A prompt of num_tokens behind `depth` cached positions, as one step with logits of its last
    row: the weights must be read once for it, in whatever chunks an engine takes it."""
    yield model.step([Chunk(num_tokens, depth + num_tokens)])


def decode_steps(
    model: CostModel, num_tokens: int, *, depth: int = 0, batch: int = 1
) -> Iterator[StepCost]:
    """num_tokens steps of one token for each of `batch` sequences, whose caches hold `depth`
    positions at first."""
    for context in range(depth + 1, depth + num_tokens + 1):
        yield model.step([Chunk(1, context)] * batch)


def batch_steps(
    model: CostModel, num_sequences: int, num_prompt: int, num_output: int
) -> Iterator[StepCost]:
    """num_sequences prompts of num_prompt tokens in one step, whose logits give every first output
    token; then one step for each further one. The last token is not computed with."""
    yield model.step([Chunk(num_prompt, num_prompt)] * num_sequences)
    yield from decode_steps(model, num_output - 1, depth=num_prompt, batch=num_sequences)


def prefill_limit(
    model: CostModel,
    rates: MachineRates,
    num_tokens: int,
    *,
    depth: int = 0,
    peaks: Peaks = Peaks.STANDARD,
) -> RunLimit:
    """PP and TTFT: see prefill_steps; counts prompt tokens."""
    steps = prefill_steps(model, num_tokens, depth=depth)
    return run_limit(steps, rates, num_tokens, peaks)


def decode_limit(
    model: CostModel,
    rates: MachineRates,
    num_tokens: int,
    *,
    depth: int = 0,
    batch: int = 1,
    peaks: Peaks = Peaks.STANDARD,
) -> RunLimit:
    """TG and TPOT: see decode_steps; counts generated tokens of all sequences."""
    steps = decode_steps(model, num_tokens, depth=depth, batch=batch)
    return run_limit(steps, rates, num_tokens * batch, peaks)


def batch_limit(
    model: CostModel,
    rates: MachineRates,
    num_sequences: int,
    num_prompt: int,
    num_output: int,
    *,
    peaks: Peaks = Peaks.STANDARD,
) -> RunLimit:
    """Batch throughput: see batch_steps; counts prompt and output tokens together."""
    num_tokens = num_sequences * (num_prompt + num_output)
    steps = batch_steps(model, num_sequences, num_prompt, num_output)
    return run_limit(steps, rates, num_tokens, peaks)


def run_limit(
    steps: Iterable[StepCost],
    rates: MachineRates,
    num_tokens: int,
    peaks: Peaks = Peaks.STANDARD,
) -> RunLimit:
    """The limit of any run. Raises ValueError for a run of no steps."""
    bounds: list[Bound] = [bound(cost, rates, peaks) for cost in steps]
    if not bounds:
        raise ValueError("a run without steps has no limit")
    total = sum(b.bound_s for b in bounds)
    in_memory = sum(b.bound_s for b in bounds if b.limited_by == "memory")
    serial = sum(b.serial_s for b in bounds)
    return RunLimit(num_tokens, total, serial, in_memory / total)
