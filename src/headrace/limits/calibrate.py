"""Calibrates this machine: which share of its roof every class of kernel reaches, by rows.

    synthetic model per number format ─ steps of 1 … 512 rows, kernel by kernel ─→ linear, row-wise
    synthetic model per head size     ─ decode steps and prompts ────────────────→ attention
    engine on a small and a large vocabulary ─ step time beyond its kernels ─────→ fixed costs

The machine is probed right before and after every measurement, because the bandwidth of a shared
machine changes within seconds, and a share is only worth something next to its own roof. Medians
count, of the runs of a measurement and of the repetitions, which lie apart in time. The kernels are
the real ones; no model file is read.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from headrace.engine.admission import Vocabulary
from headrace.engine.config import EngineOptions, Machine, resolve
from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams
from headrace.limits.calibrations import kernel_version
from headrace.limits.estimate import (
    ROW_WISE,
    Calibration,
    Curve,
    Kernel,
    Reach,
    attend_class,
    kernels_of,
    linear_class,
)
from headrace.limits.machine import Bursts, MachineProbe
from headrace.limits.rates import MachineRates
from headrace.limits.synthetic import Shape, synthetic_model
from headrace.models.load import LoadedModel
from headrace.ops.batch import Batch, GroupBatch, Int32Array
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.ops.recording import Attend, Matmul, Op
from headrace.quant.formats import FORMATS, Q4_0, NumberFormat

#: Rows of a step, where kernels of linears change their way of working (docs/matmul.md).
FEW_ROWS, MANY_ROWS = (1, 2, 4, 8, 12, 16), (32, 64, 128, 512)
MOST_ROWS = max(MANY_ROWS)
HEAD_DIMS = (64, 128, 256)
#: (sequences, new tokens of each, context) of attention's steps: those that generate, which wait
#: for memory, and prompts.
DECODES = ((1, 1, 2048), (8, 1, 512), (16, 1, 128))
PROMPTS = (
    *((1, 8, 1024), (1, 32, 1024), (4, 64, 64), (4, 128, 128), (2, 256, 256)),
    *((1, 512, 512), (1, 512, 2048)),
)
VOCABULARIES = (4096, 131_072)
SEQUENCES = (1, 16)
REPETITIONS = 4
_BLOCK = 16
#: Weights, in last-level caches. Few rows wait for them, so they must come from memory: of twice
#: the cache a part is still there in the next step. Many rows calculate.
_FEW_MULTIPLE, _MANY_MULTIPLE = 8, 2
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 1 << 30
_QUICK = Bursts(compute_s=0.003, num_compute=2, read_s=0.006, num_reads=2)
#: A measurement repeats its step until it has seen so many seconds, at least twice.
_ENOUGH_S = 0.012

#: A pass during which other processes took more of the CPUs is repeated, so often at most.
_OTHERS_SHARE = 0.1
_TRIES = 6
_PAUSE_S = 0.2
#: A measurement between two probes that differ by more is repeated, so often at most.
_STEADY, _STEADY_TRIES = 0.12, 5
#: After so many seconds nothing is repeated any more.
_PATIENCE_S = 60.0

#: Told what is about to happen and how much of the whole is done, 0 … 1.
Notice = Callable[[str, float], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Host:
    """What the system says of itself. cpu: name of the processor. busy_s: seconds of all CPUs
    together that were not idle so far, of whatever process (bench.host.busy_cpu_s)."""

    cpu: str
    busy_s: Callable[[], float]


def calibrate(
    host: Host,
    num_threads: int | None = None,
    isa: str | None = None,
    *,
    formats: Iterable[str] = tuple(FORMATS),
    notice: Notice = lambda text, done: None,
) -> Calibration:
    """Measures this machine, about a minute for all formats on a quiet one. formats: names of
    those that linears are measured in. Raises like MachineProbe."""
    probe = MachineProbe(num_threads, isa)
    quiet = _Quiet(host.busy_s)
    wanted = [FORMATS[name] for name in dict.fromkeys(formats)]
    jobs = len(wanted) + len(HEAD_DIMS) + 2
    few, many = (_size(n * probe.llc_bytes) for n in (_FEW_MULTIPLE, _MANY_MULTIPLE))
    found: dict[str, dict[int, list[_Sum]]] = {}
    least: list[float] = []
    for done, fmt in enumerate(wanted):
        notice(f"timing {fmt.name} kernels", done / jobs)
        for rows, size in ((FEW_ROWS, few), (MANY_ROWS, many)):
            _time_linears(fmt, rows, size, probe, quiet, found, least)
    for done, head_dim in enumerate(HEAD_DIMS, len(wanted)):
        notice(f"timing attention with heads of {head_dim}", done / jobs)
        for steps, size in ((DECODES, few), (PROMPTS, many // 2)):
            _time_attention(head_dim, steps, size, probe, quiet, found)
    op_s = min(least)
    notice("timing the engine", (jobs - 2) / jobs)
    step_s, sequence_s, logit_s = _engine_costs(many, probe, quiet)
    linears = [kind for kind in found if kind.startswith("linear")]
    reach = {kind: _reach(found[kind], op_s) for kind in linears}
    curves = {kind: _curve(kind, f, op_s, reach.get(kind, Reach())) for kind, f in found.items()}
    return Calibration(
        cpu=host.cpu,
        num_threads=probe.num_threads,
        isa=probe.isa,
        version=kernel_version(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        curves=curves,
        op_s=op_s,
        step_s=step_s,
        sequence_s=sequence_s,
        logit_s=logit_s,
        reach=reach,
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """One measurement of a class: sums over its kernels in a step."""

    moving_s: float = 0.0
    computing_s: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def work_s(self, op_s: float) -> float:
        """Without the starts of its kernels, which may not be all of it."""
        return max(self.seconds - self.count * op_s, self.seconds / 10)


def _reach(by_rows: dict[int, list[_Sum]], op_s: float) -> Reach:
    """Of the bandwidth at the fewest rows, of the peak at the most."""
    few, many = by_rows[min(by_rows)], by_rows[max(by_rows)]
    return Reach(
        bytes=median(s.moving_s / s.work_s(op_s) for s in few),
        operations=median(s.computing_s / s.work_s(op_s) for s in many),
    )


def _curve(kind: str, by_rows: dict[int, list[_Sum]], op_s: float, reach: Reach) -> Curve:
    """Medians over the measurements of the same number of rows."""
    together = kind.startswith("linear")
    rows = sorted(by_rows)
    shares = []
    for n in rows:
        roofs = [
            Kernel(kind, n, s.moving_s, s.computing_s, 1, together).lowered_s(reach)
            for s in by_rows[n]
        ]
        pairs = zip(roofs, by_rows[n], strict=True)
        shares.append(median(roof / s.work_s(op_s) for roof, s in pairs))
    return Curve(tuple(rows), tuple(shares))


def _size(num_bytes: int) -> int:
    return min(max(num_bytes, _LEAST_BYTES), _MOST_BYTES)


class _Quiet:
    """Repeats what others disturbed: of so many tries the least disturbed one counts."""

    def __init__(self, busy_s: Callable[[], float]) -> None:
        self._busy_s = busy_s
        self._end = time.perf_counter() + _PATIENCE_S

    def __call__(self, measure: Callable[[], T]) -> T:
        tries: list[tuple[float, T]] = []
        while len(tries) < _TRIES:
            wall, own, busy = time.perf_counter(), time.process_time(), self._busy_s()
            result = measure()
            own = time.process_time() - own
            wall = time.perf_counter() - wall
            others = (self._busy_s() - busy - own) / (wall * len(os.sched_getaffinity(0)))
            tries.append((others, result))
            if others <= _OTHERS_SHARE or time.perf_counter() > self._end:
                break
            time.sleep(_PAUSE_S)
        return min(tries, key=lambda one: one[0])[1]


# ---- kernels ------------------------------------------------------------------------------------


_Runs = list[tuple[tuple[Op, float], ...]]


class _Kernels:
    """A synthetic model with touched KV memory, whose steps are timed kernel by kernel. steps: all
    that will be: (sequences, new tokens of each, context)."""

    def __init__(
        self, model: LoadedModel, steps: Sequence[tuple[int, int, int]], probe: MachineProbe
    ) -> None:
        self._probe = probe
        self._whole = probe.rates()
        self._rates = self._quick()
        self._native = NativeModel(
            model,
            max_tokens=MOST_ROWS,
            max_requests=max(n for n, _, _ in steps),
            max_context=max(context for _, _, context in steps),
            num_threads=probe.num_threads,
            isa=probe.isa,
        )
        blocks = max(n * -(-context // _BLOCK) for n, _, context in steps)
        self._native.allocate_kv([blocks], _BLOCK, KVFormat.BF16)
        zeros = np.zeros(self._native.read_block(0, 0).size, np.uint8)
        for block in range(blocks):  # pages that nobody has written to are all the same one
            self._native.write_block(0, block, zeros)
        self._costs = CostModel(model, kv_format=KVFormat.BF16, cache_bytes=probe.llc_bytes)

    def time(self, sequences: int, new: int, context: int) -> tuple[dict[str, _Sum], float]:
        """Sums of every class over one step, medians of several runs, and the shortest
        row-wise kernel."""
        batch = self._batch(sequences, new, context)
        tries: list[tuple[float, MachineRates, _Runs]] = []
        while len(tries) < _STEADY_TRIES:
            runs = self._runs(batch)
            before, self._rates = self._rates, self._quick()
            tries.append((_change(before, self._rates), _faster(before, self._rates), runs))
            if tries[-1][0] < _STEADY:
                break
        _, rates, runs = min(tries, key=lambda one: one[0])
        step = self._costs.step([Chunk(new, context)] * sequences)
        sums = dict[str, _Sum]()
        for kernel in kernels_of(step, rates):
            known = sums.get(kernel.kind, _Sum())
            sums[kernel.kind] = _Sum(
                known.moving_s + kernel.moving_s,
                known.computing_s + kernel.computing_s,
                0.0,
                known.count + kernel.count,
            )
        least = float("inf")
        for index in range(len(self._native.fused.segments[0])):
            op = runs[0][index][0]
            seconds = median(run[index][1] for run in runs)
            match op:
                case Matmul():
                    [kind] = [name for name in sums if name.startswith("linear")]
                case Attend(q=q, heads=heads):
                    kind = attend_class(q.columns // heads)
                case _:
                    kind = ROW_WISE
                    least = min(least, seconds)
            sums[kind] = replace(sums[kind], seconds=sums[kind].seconds + seconds)
        return sums, least

    def _runs(self, batch: Batch) -> _Runs:
        """The kernels' times in several runs, after one that warms up."""
        native = self._native
        native.run(batch)
        native.profile(True)
        runs: _Runs = []
        begin = time.perf_counter()
        while len(runs) < 2 or (time.perf_counter() - begin < _ENOUGH_S and len(runs) < 15):
            native.run(batch)
            runs.append(native.op_seconds())
        native.profile(False)
        return runs

    def _quick(self) -> MachineRates:
        """The rates now: bandwidth and one peak; the other peaks move with it."""
        int8 = self._probe.ops_per_s("int8", bursts=_QUICK)
        whole, speed = self._whole, int8 / self._whole.int8_ops_per_s
        return replace(
            whole,
            read_bytes_per_s=self._probe.read_bytes_per_s(bursts=_QUICK),
            int8_ops_per_s=int8,
            bf16_ops_per_s=whole.bf16_ops_per_s * speed,
            f32_ops_per_s=whole.f32_ops_per_s * speed,
        )

    def _batch(self, sequences: int, new: int, context: int) -> Batch:
        at = np.arange(context - new, context)
        columns = -(-context // _BLOCK)
        tables = np.arange(sequences * columns).reshape(sequences, columns)
        slots = tables[:, at // _BLOCK] * _BLOCK + at % _BLOCK
        group = GroupBatch(_int32(slots.ravel()), _int32(tables), _int32(np.zeros(sequences)))
        ends = np.arange(1, sequences + 1) * new
        return Batch(
            tokens=_int32(np.arange(sequences * new)),
            positions=_int32(np.tile(at, sequences)[None, :]),
            spans=_int32(np.arange(0, sequences * new + 1, new)),
            context_lens=_int32(np.full(sequences, context)),
            logit_rows=_int32(ends - 1),
            prompt_rows=_int32([]),
            groups=(group,),
        )


def _change(a: MachineRates, b: MachineRates) -> float:
    """By how much the machine has become faster or slower; 0: not at all."""
    pairs = ((a.read_bytes_per_s, b.read_bytes_per_s), (a.int8_ops_per_s, b.int8_ops_per_s))
    return max(max(x, y) / min(x, y) - 1 for x, y in pairs)


def _faster(a: MachineRates, b: MachineRates) -> MachineRates:
    """Field by field."""
    return replace(
        a,
        read_bytes_per_s=max(a.read_bytes_per_s, b.read_bytes_per_s),
        int8_ops_per_s=max(a.int8_ops_per_s, b.int8_ops_per_s),
        bf16_ops_per_s=max(a.bf16_ops_per_s, b.bf16_ops_per_s),
        f32_ops_per_s=max(a.f32_ops_per_s, b.f32_ops_per_s),
    )


def _int32(values: object) -> Int32Array:
    return np.ascontiguousarray(values, np.int32)


_Found = dict[str, dict[int, list[_Sum]]]


def _time_linears(
    fmt: NumberFormat,
    numbers: Sequence[int],
    size: int,
    probe: MachineProbe,
    quiet: _Quiet,
    found: _Found,
    least: list[float],
) -> None:
    steps = [(1, n, n) for n in numbers]
    kernels = _Kernels(synthetic_model(Shape(), fmt, size), steps, probe)
    for _ in range(REPETITIONS):
        for rows, (sums, shortest) in quiet(lambda: [(n[1], kernels.time(*n)) for n in steps]):
            for kind in (linear_class(fmt.name), ROW_WISE):
                found.setdefault(kind, {}).setdefault(rows, []).append(sums[kind])
            least.append(shortest)


def _time_attention(
    head_dim: int,
    steps: Sequence[tuple[int, int, int]],
    size: int,
    probe: MachineProbe,
    quiet: _Quiet,
    found: _Found,
) -> None:
    """Four query heads per KV head, 1 KiB per position and layer whatever the head size. Between
    two visits of a layer's cache a step reads `size` bytes of weights and all other caches: where
    that is more than the last-level cache, keys and values come from memory, as in real models."""
    kv_heads = 256 // head_dim
    shape = Shape(intermediate=1024, head_dim=head_dim, heads=4 * kv_heads, kv_heads=kv_heads)
    kernels = _Kernels(synthetic_model(shape, Q4_0, size), steps, probe)
    kind = attend_class(head_dim)
    for _ in range(REPETITIONS):
        for new, sums in quiet(lambda: [(n[1], kernels.time(*n)[0]) for n in steps]):
            found.setdefault(kind, {}).setdefault(new, []).append(sums[kind])


# ---- the engine around them ---------------------------------------------------------------------


class _Timed(NativeModel):
    """Knows how much of its last call were kernels, and telling that."""

    kernels_s = 0.0

    def run(self, batch: Batch) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        logits = super().run(batch)
        begin = time.perf_counter()
        kernels_s = sum(seconds for _, seconds in self.op_seconds())
        self.kernels_s = kernels_s + time.perf_counter() - begin
        return logits


def _engine_costs(size: int, probe: MachineProbe, quiet: _Quiet) -> tuple[float, float, float]:
    """step_s, sequence_s, logit_s of Calibration: least squares over decode steps of few and many
    sequences on a small and a large vocabulary."""
    rows, seconds = [], []
    for vocab in VOCABULARIES:
        model = synthetic_model(Shape(vocab=vocab), Q4_0, size)
        for num in SEQUENCES:
            rows.append([1.0, num, num * vocab])
            seconds.append(quiet(partial(_beside_kernels, model, num, probe)))
    solution = np.linalg.lstsq(np.array(rows), np.array(seconds), rcond=None)[0]
    step_s, sequence_s, logit_s = (max(float(x), 0.0) for x in solution)
    return step_s, sequence_s, logit_s


def _beside_kernels(model: LoadedModel, num_sequences: int, probe: MachineProbe) -> float:
    """Median seconds of a greedy decode step outside of its kernels."""
    steps = 24
    options = EngineOptions(
        max_model_len=64, max_num_seqs=num_sequences, num_threads=probe.num_threads
    )
    config = resolve(options, model.kv_groups, model.max_context, Machine(None, 1))
    executor = _Timed(
        model,
        max_tokens=config.max_num_batched_tokens,
        max_requests=num_sequences,
        max_context=config.max_model_len,
        num_threads=probe.num_threads,
        isa=probe.isa,
    )
    executor.profile(True)
    engine = Engine(executor, Vocabulary(model.vocab_size, new_stream=lambda skip: _Text()), config)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=steps)
    for i in range(num_sequences):
        engine.add([i + 1, 2, 3, 4], params)
    beside = []
    while engine.has_work:
        begin = time.perf_counter()
        deltas = engine.step()
        if len(deltas) == num_sequences:
            beside.append(time.perf_counter() - begin - executor.kernels_s)
    return median(beside[2:])


class _Text:
    """A detokenizer that answers at once."""

    pending = False

    def push(self, token_id: int) -> str:
        return "x"

    def finish(self) -> str:
        return ""
