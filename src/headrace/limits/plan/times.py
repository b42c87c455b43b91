"""Times of one way to run a model, from the steps that an engine with continuous batching takes.

    Part (n new tokens up to a context, so many sequences alike) … = a step
    Clock: a step → seconds        BoundClock: no less is possible · EstimateClock: calibrated

Prompts are computed in order, in steps of at most `budget` tokens; sequences whose prompt is done
generate a token in every step. A run of many steps is sampled and summed between the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from headrace.limits.bound import Peaks, bound
from headrace.limits.estimate import Calibration, estimate
from headrace.limits.plan.formats import FP8, INT4, MXFP4, NVFP4
from headrace.limits.plan.hardware import Hardware
from headrace.limits.rates import MachineRates
from headrace.limits.step_limits import StepLimits
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, StepCost, visible_before, visible_pairs
from headrace.quant.formats import NumberFormat

#: Runs of more steps are sampled.
MAX_EXACT_STEPS = 128
NUM_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Part:
    """`count` sequences of a step, each with num_new tokens that end at `context`."""

    num_new: int
    context: int
    count: int = 1


Step = Sequence[Part]


class Clock(Protocol):
    """Seconds of a step."""

    def seconds(self, step: Step) -> float: ...


class BoundClock:
    """The bound of a step (limits/bound.py), each op at the peak of its own number format."""

    def __init__(self, costs: CostModel, rates: MachineRates) -> None:
        self._limits = StepLimits(costs, rates, Peaks.OWN)

    def seconds(self, step: Step) -> float:
        rows = sum(p.num_new * p.count for p in step)
        logits = sum(p.count for p in step)
        pairs = [
            sum(p.count * visible_pairs(p.num_new, p.context, w) for p in step)
            for w in self._limits.windows
        ]
        before = [
            sum(p.count * visible_before(p.num_new, p.context, w) for p in step)
            for w in self._limits.windows
        ]
        return self._limits.step((rows, logits, 0, 0), pairs, before).bound_s


class EstimateClock:
    """What a calibrated machine is expected to take (limits/estimate.py)."""

    def __init__(self, costs: CostModel, rates: MachineRates, calibration: Calibration) -> None:
        self._costs, self._rates, self._calibration = costs, rates, calibration

    def seconds(self, step: Step) -> float:
        return estimate(self._costs.step(chunks_of(step)), self._rates, self._calibration)


def chunks_of(step: Step) -> list[Chunk]:
    """The step as the cost interpreter takes it."""
    return [Chunk(p.num_new, p.context) for p in step for _ in range(p.count)]


# ---- rates --------------------------------------------------------------------------------------


#: Stands for a peak that nobody states: arithmetic then bounds nothing.
UNKNOWN_PEAK = 1e30


def rates_of(hardware: Hardware, weights: NumberFormat) -> MachineRates | None:
    """The rates that limit a model whose matrices are mostly in `weights`; None without a
    bandwidth. Without any peak, memory alone bounds the steps.

    Weights of 4 bits (INT4, MXFP4, NVFP4) are multiplied in 16 bit. An accelerator without a peak
    for narrow numbers widens them to 16 bit, one without 16 bit to 32. Of a processor that nobody
    states an int8 peak of, none is known: it may have the instructions.
    """
    bf16 = hardware.bf16_ops_per_s or hardware.f32_ops_per_s or UNKNOWN_PEAK
    f32 = hardware.f32_ops_per_s or bf16
    int8, fp8 = hardware.int8_ops_per_s, hardware.fp8_ops_per_s
    narrow: float | None
    if weights.name in ("F32", "F16", "BF16") or weights in (INT4, MXFP4, NVFP4):
        narrow = bf16
    elif weights == FP8:
        narrow = fp8
    elif int8 is None and hardware.kind == "cpu":
        narrow = UNKNOWN_PEAK
    else:
        narrow = int8 or fp8  # both run at one rate wherever both exist
    if hardware.read_bytes_per_s is None:
        return None
    return MachineRates(
        read_bytes_per_s=hardware.read_bytes_per_s,
        int8_ops_per_s=narrow or bf16,
        bf16_ops_per_s=bf16,
        f32_ops_per_s=f32,
        num_threads=1,
        isa=hardware.name,
        llc_bytes=int(hardware.cache_bytes or 0),
    )


def knows_peaks(rates: MachineRates) -> bool:
    """Whether arithmetic can be timed."""
    return max(rates.int8_ops_per_s, rates.bf16_ops_per_s, rates.f32_ops_per_s) < UNKNOWN_PEAK


@dataclass(frozen=True, slots=True)
class Limiter:
    """What bounds a step. by: "memory" or "compute". most: of memory, what most bytes are:
    "weights", "KV" or "activations". share: the shorter of memory and compute ÷ the longer."""

    by: str
    most: str
    share: float

    @property
    def word(self) -> str:
        """ "weights", "KV", "activations" or "compute"."""
        return "compute" if self.by == "compute" else self.most


def limiter(cost: StepCost, rates: MachineRates) -> Limiter:
    """See Limiter."""
    limit, total = bound(cost, rates, Peaks.OWN), cost.total
    kinds = {
        "weights": total.weight_bytes,
        "KV": total.kv_bytes,
        "activations": total.activation_bytes,
    }
    shorter, longer = sorted((limit.memory_s, limit.compute_s))
    return Limiter(limit.limited_by, max(kinds, key=lambda k: kinds[k]), shorter / longer)


# ---- the four times -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """What runs: `concurrency` sequences at once, prompts of `prompt` tokens, outputs of `output`
    (None: not said; generation is then looked at where the context is full). context: positions
    that each may take. budget: most tokens of a step."""

    concurrency: int
    context: int
    prompt: int
    output: int | None
    budget: int

    def alone(self) -> Load:
        return replace(self, concurrency=1)


def decode_step(load: Load, context: int | None = None) -> Step:
    """One token for every sequence; context: of each (default: see decode_contexts)."""
    middle = decode_contexts(load)[1]
    return (Part(1, context or middle, load.concurrency),)


def decode_contexts(load: Load) -> tuple[int, int, int]:
    """Where generation is looked at: first, middle and last context of the output."""
    if load.output is None:
        return (load.context,) * 3
    last = max(load.prompt + load.output - 1, load.prompt + 1)
    return load.prompt + 1, (load.prompt + 1 + last) // 2, last


def tpot_s(load: Load, clock: Clock) -> float:
    """Mean time of a step in which every sequence generates: by Simpson's rule over the output,
    exact where time is linear in the context."""
    first, middle, last = (clock.seconds(decode_step(load, c)) for c in decode_contexts(load))
    return (first + 4 * middle + last) / 6


def prompt_step(load: Load) -> Step:
    """The first step of a prompt alone."""
    new = min(load.prompt, load.budget)
    return (Part(new, new),)


def joining_s(load: Load, clock: Clock) -> float:
    """Time to first token of a request that joins when the others all generate."""
    others = load.concurrency - 1
    context = decode_contexts(load)[1]
    running = [Part(1, context, others)] if others else []
    chunk = max(load.budget - others, 1)
    starts = range(0, load.prompt, chunk)
    if len(starts) <= MAX_EXACT_STEPS:
        chosen, weight = list(starts), 1.0
    else:
        chosen = [
            starts[(2 * i + 1) * len(starts) // (2 * NUM_SAMPLES)] for i in range(NUM_SAMPLES)
        ]
        weight = len(starts) / NUM_SAMPLES
    ends = [(start, min(start + chunk, load.prompt)) for start in chosen]
    return weight * sum(clock.seconds([*running, Part(end - at, end)]) for at, end in ends)


def burst_s(load: Load, clock: Clock) -> float:
    """Mean time to first token over `concurrency` requests that arrive at once, at an idle engine:
    what `headrace bench run -npl` measures."""
    finished: list[float] = []  # when each prompt was done
    time = 0.0
    for done, before, elapsed in _progress(load, clock):
        first, last = before // load.prompt, done // load.prompt
        for i in range(first, last):  # prompts that end in this stretch, evenly inside it
            share = ((i + 1) * load.prompt - before) / (done - before)
            exact = elapsed.num_steps == 1
            finished.append(time + elapsed.seconds * (1.0 if exact else share))
        time += elapsed.seconds
    return sum(finished) / len(finished)


@dataclass(frozen=True, slots=True)
class _Stretch:
    seconds: float
    num_steps: float


def _progress(load: Load, clock: Clock) -> Iterator[tuple[int, int, _Stretch]]:
    """(prompt tokens done, done before, the stretch between), until all prompts are done: step by
    step, or for long runs in equal stretches, each as many steps like the one in its middle."""
    total = load.concurrency * load.prompt
    if total <= MAX_EXACT_STEPS * load.budget // 2:
        done = 0
        while done < total:
            step, taken = burst_step(load, done)
            yield done + taken, done, _Stretch(clock.seconds(step), 1)
            done += taken
        return
    edges = [total * i // NUM_SAMPLES for i in range(NUM_SAMPLES + 1)]
    for before, done in pairwise(edges):
        step, taken = burst_step(load, min((before + done) // 2, total - 1))
        steps = (done - before) / taken
        yield done, before, _Stretch(steps * clock.seconds(step), steps)


def burst_step(load: Load, done: int) -> tuple[Step, int]:
    """The step after `done` prompt tokens of a burst, and how many prompt tokens it takes.

    Sequences whose prompt is done generate until they have `output` tokens; their mean age stands
    for all of them.
    """
    prompt, total = load.prompt, load.concurrency * load.prompt
    complete, offset = divmod(done, prompt)
    output = load.output or max(load.context - prompt, 1)
    gone = max(0, (done - output * load.budget) // prompt)
    running = complete - min(gone, complete)
    step = []
    if running:
        age = min(running * prompt // load.budget // 2, output) + 1
        step.append(Part(1, min(prompt + age, max(load.context, prompt + 1)), running))
    room = min(max(load.budget - running, 1), total - done)
    taken = room
    if offset:
        rest = min(prompt - offset, room)
        step.append(Part(rest, offset + rest))
        room -= rest
    if room >= prompt:
        step.append(Part(prompt, prompt, room // prompt))
        room %= prompt
    if room:
        step.append(Part(room, room))
    return step, taken
