"""Rows of a report: the values of a case next to their limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import Sample
from headrace.bench.ratios import Spread, spread
from headrace.limits.rates import MachineRates
from headrace.limits.workloads import RunLimit, decode_steps, run_limit
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, StepCost


@dataclass(frozen=True, slots=True)
class Row:
    """One line. test: "pp512", "tg64", or a part of a batch. tok_per_s: over the repetitions.
    values: tokens/s of each. limit: of the same work at the probed rates. ttft_ms, tpot_ms: where
    the test has them, the mean over its sequences."""

    test: str
    case: Case
    values: tuple[float, ...]
    limit: RunLimit
    ttft_ms: Spread | None = None
    tpot_ms: Spread | None = None

    @property
    def tok_per_s(self) -> Spread:
        return spread(self.values)

    @property
    def of_bound(self) -> float:
        """The median as a part of the bound, 1 = at the limit."""
        return self.tok_per_s.median / self.limit.tok_per_s

    @property
    def of_serial(self) -> float:
        """The median as a part of what the serial sum allows."""
        return self.tok_per_s.median / self.limit.serial_tok_per_s

    @property
    def limited_by(self) -> str:
        """What most of the bound is spent on: "memory" or "compute"."""
        return "memory" if self.limit.memory_bound_share >= 0.5 else "compute"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        case = self.case
        values: dict[str, Any] = {
            "test": self.test,
            "batch": case.batch,
            "depth": case.depth,
            "num_prompt": case.num_prompt,
            "num_output": case.num_output,
            "tok_per_s": self.tok_per_s.to_dict(),
            "values": list(self.values),
            "bound_tok_per_s": self.limit.tok_per_s,
            "serial_tok_per_s": self.limit.serial_tok_per_s,
            "of_bound": self.of_bound,
            "of_serial": self.of_serial,
            "limited_by": self.limited_by,
        }
        for name, times in (("ttft_ms", self.ttft_ms), ("tpot_ms", self.tpot_ms)):
            if times is not None:
                values[name] = times.to_dict()
        return values


def rows_of(
    case: Case, samples: Sequence[Sample], costs: CostModel, rates: MachineRates
) -> list[Row]:
    """The rows of a case: one, and for a batch its two parts as well."""
    whole = _row(case.test, case, samples, run_limit(_steps(case, costs), rates, 1))
    if case.kind is not Kind.BATCH:
        return [whole]
    return [whole, *_parts(case, samples, costs, rates)]


def _row(test: str, case: Case, samples: Sequence[Sample], limit: RunLimit) -> Row:
    tokens = samples[0].num_tokens
    return Row(
        test,
        case,
        tuple(s.num_tokens / s.seconds for s in samples),
        RunLimit(tokens, limit.bound_s, limit.serial_s, limit.memory_bound_share),
        _times(samples, lambda s: s.ttft_s),
        _times(samples, lambda s: s.tpot_s),
    )


def _times(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> Spread | None:
    values = [seconds for s in samples if (seconds := of(s)) is not None]
    return spread([1e3 * v for v in values]) if values else None


def _steps(case: Case, costs: CostModel) -> list[StepCost]:
    """The fewest steps that do the work of a case (limits/workloads.py)."""
    steps = []
    if case.num_prompt:
        steps.append(_prompts(case, costs))
    # In a batch the prompt's logits give the first token.
    num_steps = case.num_output - (1 if case.num_prompt else 0)
    return steps + list(decode_steps(costs, num_steps, depth=case.start, batch=case.batch))


def _prompts(case: Case, costs: CostModel) -> StepCost:
    """All prompts in one step."""
    return costs.step([Chunk(case.num_prompt, case.depth + case.num_prompt)] * case.batch)


def _parts(
    case: Case, samples: Sequence[Sample], costs: CostModel, rates: MachineRates
) -> list[Row]:
    """Prompts until every sequence has its first token; steps in which all sequences decode."""
    num_prompts = case.batch * case.num_prompt
    seconds = [s.prefill_s for s in samples if s.prefill_s is not None]
    rows = [
        Row(
            f"pp{case.num_prompt}",
            case,
            tuple(num_prompts / s for s in seconds),
            run_limit([_prompts(case, costs)], rates, num_prompts),
        )
    ]
    full = [s for s in samples if s.num_decode_steps]
    if full:
        num_steps = int(median(s.num_decode_steps for s in full))
        start = int(median(s.decode_start for s in full))
        steps = decode_steps(costs, num_steps, depth=start, batch=case.batch)
        rows.append(
            Row(
                f"tg{case.num_output}",
                case,
                tuple(case.batch * s.num_decode_steps / s.decode_s for s in full),
                run_limit(steps, rates, case.batch * num_steps),
            )
        )
    return rows
