"""Where the time of a case goes: its steps again, with every op timed.

Timing costs each op a barrier and a clock, so these steps are not among the measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.bench.cases import Case, Kind, prompt_ids
from headrace.bench.measure import GREEDY
from headrace.engine.core import Engine
from headrace.limits.op_rows import Naming, OpRow, Profile, op_rows
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.native import NativeModel

_PREFILLS = 3
_DECODE_STEPS = 15


@dataclass(frozen=True, slots=True)
class OpTable:
    """One step's ops by kind, the slowest first. step: what was timed, in words."""

    step: str
    case: Case
    rows: tuple[OpRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "step": self.step,
            "batch": self.case.batch,
            "depth": self.case.depth,
            "ops": [
                {
                    "op": row.name,
                    "count": row.count,
                    "ms": 1e3 * row.seconds,
                    "share": row.share,
                    "gb_per_s": row.gb_per_s,
                    "gop_per_s": row.gop_per_s,
                    "of_limit": row.of_limit,
                }
                for row in self.rows
            ],
        }


def profile_case(
    engine: Engine,
    model: NativeModel,
    case: Case,
    costs: CostModel,
    rates: MachineRates,
    naming: Naming | None = None,
) -> list[OpTable]:
    """Tables of the steps that a case consists of: a prompt's last chunk, a decode step of all
    sequences. rates: probed just before. naming: as op_rows takes it."""
    model.profile(True)
    try:
        tables = []
        if case.num_prompt:
            total = case.depth + case.num_prompt
            num_new = (total - 1) % engine.config.max_prefill_tokens + 1
            profiles = [_prefill(engine, model, total) for _ in range(_PREFILLS)]
            cost = costs.step([Chunk(num_new, total)])
            tables.append(
                OpTable(
                    f"the last {num_new} tokens of a prompt of {total}",
                    case,
                    op_rows(profiles, cost, rates, naming=naming),
                )
            )
        if case.num_output > 1:
            steps = list(_decode(engine, model, case))
            if steps:
                context = case.start + 1 + len(steps) // 2
                cost = costs.step([Chunk(1, context)] * case.batch)
                many = f" for each of {case.batch} sequences" if case.batch > 1 else ""
                step = f"one token{many}, context {context}"
                tables.append(OpTable(step, case, op_rows(steps, cost, rates, naming=naming)))
        return tables
    finally:
        model.profile(False)
        for request in engine.requests():
            engine.abort(request)


def _prefill(engine: Engine, model: NativeModel, num_tokens: int) -> Profile:
    """The step that gives a prompt's next token: its last chunk."""
    engine.cache.clear()
    ids = prompt_ids(engine.vocabulary.num_ids, num_tokens)
    request = engine.add(ids, GREEDY.replace(max_tokens=1))
    while engine.has_work:
        engine.step()
    assert request.num_cached_tokens == 0, "the rows would be those of a prefix hit"
    return model.op_seconds()


def _decode(engine: Engine, model: NativeModel, case: Case) -> Iterator[Profile]:
    """Steps in which every sequence draws one token, from the first such step on."""
    engine.cache.clear()
    num_ids = engine.vocabulary.num_ids
    params = GREEDY.replace(max_tokens=case.num_output + (case.kind is Kind.DECODE))
    requests = [
        engine.add(prompt_ids(num_ids, case.start, sequence), params)
        for sequence in range(case.batch)
    ]
    while engine.has_work and not all(r.generations[0].token_ids for r in requests):
        engine.step()
    taken = 0
    while engine.has_work and taken < _DECODE_STEPS:
        if len(engine.step()) == case.batch:
            taken += 1
            yield model.op_seconds()
    for request in requests:
        engine.abort(request)
