"""Benchmark of a verification step: what computing several tokens at once costs next to one.

    python tools/bench_verify_cost.py [MODEL] [--rows 1-17] [--context 1500] [--sequences 1] [--ops]

A speculative step computes a sequence's last token and its drafts, and the logits of all of them.
Whether guessing pays is decided by

    v(rows) = time of a step of `rows` rows ÷ time of a step of one row

Weights and cache are read once however many rows there are; arithmetic grows with them. So the
limit, from the cost interpreter and the machine's rates probed next to the steps, is

    v_bound(rows) = bound(rows) ÷ bound(1),  bound = max(bytes ÷ bandwidth, operations ÷ peak)

With --sequences n the rows are shared evenly by n sequences (those not divisible are left out).
Steps run on the native model alone, without the engine; row counts take turns; medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.bench.cases import prompt_ids
from headrace.engine.model import OpenModel, open_model
from headrace.limits.bound import bound
from headrace.limits.machine import MachineProbe
from headrace.limits.op_rows import OpRow, Profile, op_rows
from headrace.limits.rates import MachineRates, median_rates
from headrace.native import _core
from headrace.ops.batch import Batch, GroupBatch
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, StepCost
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel

BLOCK = 16
PREFILL = 512  # tokens of a step


class Steps:
    """A model whose cache holds `context` positions of each of `sequences` sequences; its steps
    add rows behind them, always at the same positions."""

    def __init__(
        self,
        model: OpenModel,
        context: int,
        sequences: int,
        most_rows: int,
        threads: int | None,
        pool: _core.Pool | None = None,
    ) -> None:
        self.context, self.sequences = context, sequences
        length = context + most_rows
        self._columns = -(-length // BLOCK)
        self._ids = [prompt_ids(model.tokenizer.num_ids, length, s) for s in range(sequences)]
        self._groups = len(model.program.kv_groups)
        self.native = NativeModel(
            model.program,
            max_tokens=max(PREFILL, most_rows),
            max_requests=sequences,
            max_context=length,
            num_threads=threads,
            pool=pool,
        )
        blocks = [sequences * self._columns] * self._groups
        self.native.allocate_kv(blocks, BLOCK, KVFormat.BF16)
        for sequence in range(sequences):
            for start in range(0, context, PREFILL):
                self.native.run(self._batch([sequence], start, min(PREFILL, context - start), 1))

    def verification(self, rows: int) -> Batch:
        """A step of `rows` rows, logits of every one."""
        each = rows // self.sequences
        return self._batch(range(self.sequences), self.context, each, each)

    def cost(self, costs: CostModel, rows: int) -> StepCost:
        """What `verification(rows)` costs."""
        each = rows // self.sequences
        chunks = [Chunk(each, self.context + each)] * self.sequences
        return costs.step(chunks, num_logit_rows=rows)

    def _batch(self, sequences: Sequence[int], start: int, count: int, num_logits: int) -> Batch:
        num, rows = len(sequences), len(sequences) * count
        at = np.arange(start, start + count)
        tables = np.stack([np.arange(self._columns) + s * self._columns for s in sequences])
        slots = tables[:, at // BLOCK] * BLOCK + at % BLOCK
        group = GroupBatch(_int32(slots.ravel()), _int32(tables), _int32(np.zeros(num)))
        ends = np.arange(1, num + 1) * count
        wanted = ends[:, None] - np.arange(num_logits, 0, -1)
        return Batch(
            tokens=_int32([self._ids[s][p] for s in sequences for p in at]),
            positions=_int32(np.tile(at, num)[None, :]),
            spans=_int32(np.arange(0, rows + 1, count)),
            context_lens=_int32(np.full(num, start + count)),
            logit_rows=_int32(wanted.ravel()),
            prompt_rows=_int32([]),
            groups=(group,) * self._groups,
        )


def _int32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.ascontiguousarray(values, np.int32)


@dataclass(frozen=True, slots=True)
class Row:
    """One number of rows. ms, bound_ms: of the step. ops: per kind of kernel, if they were
    timed."""

    rows: int
    ms: float
    bound_ms: float
    v: float
    v_bound: float
    ops: tuple[OpRow, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        ops = {op.name: round(1e3 * op.seconds, 3) for op in self.ops}
        return {
            "rows": self.rows,
            "ms": round(self.ms, 3),
            "bound_ms": round(self.bound_ms, 3),
            "v": round(self.v, 3),
            "v_bound": round(self.v_bound, 3),
            "of_bound": round(self.bound_ms / self.ms, 3),
        } | ({"ops_ms": ops} if ops else {})


def measure(
    steps: Steps,
    counts: Sequence[int],
    costs: CostModel,
    probe: MachineProbe,
    repetitions: int,
    ops: bool,
) -> tuple[list[Row], MachineRates]:
    """One Row per number of rows, which take turns; the first of `counts` is what v divides by."""
    batches = {rows: steps.verification(rows) for rows in counts}
    for batch in batches.values():
        steps.native.run(batch)
    times: dict[int, list[float]] = {rows: [] for rows in counts}
    rates = [probe.rates()]
    for repetition in range(repetitions):
        for rows, batch in batches.items():
            begin = time.perf_counter()
            steps.native.run(batch)
            times[rows].append(time.perf_counter() - begin)
        if repetition % 5 == 4:
            rates.append(probe.rates())
    machine = median_rates(rates)
    profiles: dict[int, list[Profile]] = {rows: [] for rows in counts}
    if ops:
        steps.native.profile(True)
        for _ in range(max(3, repetitions // 2)):
            for rows, batch in batches.items():
                steps.native.run(batch)
                profiles[rows].append(steps.native.op_seconds())
        steps.native.profile(False)
    found: list[Row] = []
    for rows in counts:
        cost = steps.cost(costs, rows)
        ms = 1e3 * statistics.median(times[rows])
        bound_ms = 1e3 * bound(cost, machine).bound_s
        one = found[0] if found else None
        found.append(
            Row(
                rows, ms, bound_ms,
                v=ms / one.ms if one else 1.0,
                v_bound=bound_ms / one.bound_ms if one else 1.0,
                ops=op_rows(profiles[rows], cost, machine) if ops else (),
            )
        )  # fmt: skip
    return found, machine


def print_table(found: Sequence[Row]) -> None:
    print("| rows | ms | v | bound ms | v_bound | % of bound |\n|---|---|---|---|---|---|")
    for row in found:
        print(
            f"| {row.rows} | {row.ms:.2f} | {row.v:.2f} | {row.bound_ms:.2f} "
            f"| {row.v_bound:.2f} | {row.bound_ms / row.ms:.0%} |"
        )
    if not found[0].ops:
        return
    names = [op.name for op in sorted(found[-1].ops, key=lambda op: -op.seconds)]
    print("\nms by kernel (timed one by one)\n")
    print(f"| rows | {' | '.join(names)} |\n|---{'|---' * len(names)}|")
    for row in found:
        ms = {op.name: 1e3 * op.seconds for op in row.ops}
        print(f"| {row.rows} | {' | '.join(f'{ms[name]:.2f}' for name in names)} |")


def _counts(text: str) -> list[int]:
    """ "1-4,8" → [1, 2, 3, 4, 8]"""
    parts = (part.split("-") for part in text.split(","))
    return sorted({n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)})


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="qwen2.5-coder-1.5b")
    parser.add_argument("--rows", type=_counts, default=_counts("1-17"))
    parser.add_argument("--context", type=int, default=1500)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--ops", action="store_true", help="also time every kernel")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    counts = [n for n in arguments.rows if n % arguments.sequences == 0]
    model = open_model(arguments.model)
    steps = Steps(model, arguments.context, arguments.sequences, counts[-1], arguments.threads)
    probe = MachineProbe(arguments.threads)
    costs = CostModel(model.program, kv_format=KVFormat.BF16, cache_bytes=probe.llc_bytes)
    found, rates = measure(steps, counts, costs, probe, arguments.repetitions, arguments.ops)
    if arguments.json:
        print(json.dumps(rates.to_dict() | {"rows": [row.to_dict() for row in found]}))
        return
    machine = rates.to_dict()
    print(
        f"{arguments.model}, context {arguments.context}, {arguments.sequences} sequence(s), "
        f"{rates.num_threads} threads, {rates.isa}: {machine['read_gb_per_s']:.0f} GB/s, "
        f"{machine['int8_gop_per_s']:.0f} int8 Gop/s\n"
    )
    print_table(found)


if __name__ == "__main__":
    main()
