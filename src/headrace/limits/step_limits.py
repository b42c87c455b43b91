"""StepLimits: the limit of a step in microseconds of Python, for an account while steps run.

`CostModel.step` lists what every op costs; a running engine needs only sums, of many steps. Here
they are a closed form of the step's counts, derived once from the same ops: equal, bit for bit, to
`bound(CostModel.step(...))`.

    linear in the rows of each kind    operations, KV written
    linear in pairs and positions      attention's operations, KV read, per window
    steps                              weights (read when a kind of rows is there), activations
                                       and new KV (cross the bus when larger than the cache)
    min(rows, table)                   embedding gathers
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress, product
from operator import mul

from headrace.engine.config import EngineConfig
from headrace.engine.model import OpenModel
from headrace.limits.bound import Peaks, compute_s, limiting_unit
from headrace.limits.machine import quick_rates
from headrace.limits.rates import MachineRates
from headrace.ops.contract import Rows
from headrace.ops.cost import CostModel, KnownOp
from headrace.ops.counts import Unit
from headrace.ops.recording import Attend, Embed, KVWrite, Select

_MAX_KNOWN = 4096
#: In this order the rows of a step are given.
KINDS = (Rows.TOKENS, Rows.LOGIT_ROWS, Rows.PROMPT_ROWS, Rows.HIDDEN_ROWS)


@dataclass(slots=True)  # not frozen: one is made per step
class StepLimit:
    """What a step cannot do without. bound_s: seconds, see limits/bound.py. operations: a
    multiply-add counts as two. read_bytes, written_bytes: that must cross the memory bus."""

    bound_s: float
    operations: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class _Spill:
    """Values of row_bytes bytes a row, `kind` rows of them: larger than the cache, `moved` rows of
    them are read by so many ops and written by so many."""

    kind: int
    moved: int
    row_bytes: int
    num_reads: int
    num_writes: int


def limits_of(model: OpenModel, config: EngineConfig) -> StepLimits:
    """The limits of a model with a configuration's number formats and threads, on this machine as
    it is now. Measures the machine: see machine.quick_rates for what that costs."""
    rates = quick_rates(config.num_threads)
    costs = CostModel(model.program, kv_format=config.kv_format, cache_bytes=rates.llc_bytes)
    return StepLimits(costs, rates)


class StepLimits:
    """The limits of one model's steps on one machine. One thread at a time: what depends on the
    numbers of rows alone is kept, since steps that only decode have the same again and again.

    windows: of the model's attention; pairs and positions are given in this order.
    """

    def __init__(
        self, model: CostModel, rates: MachineRates, peaks: Peaks = Peaks.STANDARD
    ) -> None:
        self.windows = model.windows
        self.rates = rates
        units = (Unit.INT8, Unit.BF16, Unit.F32)
        self._by_row = [_row_work(model, unit, peaks) for unit in units]
        self._weight_bytes = _weight_bytes(model)
        self._embeds = [
            (KINDS.index(known.rows), *model.table(known.op))
            for known in model.ops
            if isinstance(known.op, Embed)
        ]
        writes = [known.op for known in model.ops if isinstance(known.op, KVWrite)]
        self._written_per_token = sum(model.entry_bytes(op.group) for op in writes)
        attends = [known.op for known in model.ops if isinstance(known.op, Attend)]
        self._by_window = [_pair_work(model, unit, peaks) for unit in units]
        self._by_window.append(
            [
                sum(model.entry_bytes(op.group) for op in attends if op.window == window)
                for window in self.windows
            ]
        )
        self._cache_bytes = math.inf if model.cache_bytes is None else model.cache_bytes
        self._spills = _spills(model)
        self._by_rows: dict[tuple[int, ...], tuple[int, int, int, int, int]] = {}

    def step(self, rows: tuple[int, ...], pairs: Sequence[int], before: Sequence[int]) -> StepLimit:
        """rows: of each of KINDS; the first is not 0. pairs: (query, position) pairs that attention
        computes, before: older positions that it sees, summed over the requests, by window; see
        Chunk."""
        known = self._by_rows.get(rows)
        if known is None:
            if len(self._by_rows) >= _MAX_KNOWN:
                self._by_rows.clear()
            known = self._by_rows[rows] = self._row_sums(rows)
        int8, bf16, f32, read, written = known
        for of_int8, of_bf16, of_f32, of_read, num_pairs, num_before in zip(
            *self._by_window, pairs, before, strict=True
        ):
            int8 += of_int8 * num_pairs
            bf16 += of_bf16 * num_pairs
            f32 += of_f32 * num_pairs
            read += of_read * num_before
        rates = self.rates
        moving = (read + written) / rates.read_bytes_per_s
        working = compute_s(int8, bf16, f32, rates)
        bound_s = moving if moving > working else working
        return StepLimit(bound_s, int8 + bf16 + f32, read, written)

    def _row_sums(self, rows: tuple[int, ...]) -> tuple[int, int, int, int, int]:
        """What depends on the numbers of rows alone: operations of each unit, bytes read and
        written."""
        int8, bf16, f32 = (sum(map(mul, each, rows)) for each in self._by_row)
        read = self._weight_bytes[tuple(map(bool, rows))]
        for kind, table_rows, row_bytes in self._embeds:
            read += min(rows[kind], table_rows) * row_bytes
        written = rows[0] * self._written_per_token
        for spill in self._spills:
            if rows[spill.kind] * spill.row_bytes > self._cache_bytes:
                moved = rows[spill.moved] * spill.row_bytes
                read += moved * spill.num_reads
                written += moved * spill.num_writes
        return int8, bf16, f32, read, written


def _row_work(model: CostModel, unit: Unit, peaks: Peaks) -> list[int]:
    """Operations that the unit's peak limits, of a row of each kind."""
    ops = [k for k in _limited_by(model, unit, peaks) if not isinstance(k.op, Attend)]
    return [sum(known.operations for known in ops if known.rows is kind) for kind in KINDS]


def _pair_work(model: CostModel, unit: Unit, peaks: Peaks) -> list[int]:
    """The same of a (query, position) pair, by window."""
    ops = [
        (known.op.window, known.operations)
        for known in _limited_by(model, unit, peaks)
        if isinstance(known.op, Attend)
    ]
    return [sum(count for w, count in ops if w == window) for window in model.windows]


def _limited_by(model: CostModel, unit: Unit, peaks: Peaks) -> list[KnownOp]:
    return [known for known in model.ops if limiting_unit(known.op, known.unit, peaks) is unit]


def _weight_bytes(model: CostModel) -> dict[tuple[bool, ...], int]:
    """Which kinds have rows → bytes of the weights that are read then, each once."""

    def read_by(kinds: Collection[Rows]) -> int:
        ran = (known for known in model.ops if known.rows in kinds)
        names = {n for known in ran if not isinstance(known.op, Embed) for n in known.weights}
        return sum(map(model.stored_bytes, names))

    choices = product((False, True), repeat=len(KINDS))
    return {chosen: read_by(set(compress(KINDS, chosen))) for chosen in choices}


def _spills(model: CostModel) -> list[_Spill]:
    """Every kind and width of values that ops read and write, new keys and values included."""
    reads: Counter[tuple[int, int, int]] = Counter()
    writes: Counter[tuple[int, int, int]] = Counter()
    for known in model.ops:
        for value in known.values:
            # Selecting touches the chosen rows only.
            moved = known.rows if isinstance(known.op, Select) else value.rows
            key = (
                KINDS.index(value.rows),
                KINDS.index(moved),
                value.columns * model.activation_bytes,
            )
            (writes if value is known.op.output else reads)[key] += 1
        if isinstance(known.op, Attend):
            tokens = KINDS.index(Rows.TOKENS)
            reads[tokens, tokens, model.entry_bytes(known.op.group)] += 1
    return [_Spill(*key, reads[key], writes[key]) for key in reads | writes]
