"""How fast the trained variants decode on the native path, measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.bench.cases import Case, Kind
from headrace.bench.gate import check
from headrace.bench.measure import Sample, run_case
from headrace.bench.setup import Settings, make_config, make_subject
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, native_executor, vocabulary_of
from headrace.lab.heads.variants import Plan
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.program import Outline


@dataclass(slots=True)
class Speed:
    """One variant. tok_per_s: one value per repetition, of the steps in which all sequences decode.
    cache_bytes: what the native path's blocks hold per position. of_bound: share of the limit at
    the rates probed right before, one per repetition."""

    cache_bytes: float
    tok_per_s: list[float] = field(default_factory=list)
    of_bound: list[float] = field(default_factory=list)


def decode_case(plan: Plan) -> Case:
    """`batch` sequences that each have `depth` positions in the cache when they start to decode."""
    return Case(Kind.BATCH, 16, plan.outputs, depth=plan.depth - 16, batch=plan.batch)


def decode_bound(program: Outline, rates: MachineRates, plan: Plan, context: int) -> float:
    """Tokens per second that the bytes and operations of a decode step allow."""
    costs = CostModel(program, cache_bytes=rates.llc_bytes)
    step = costs.step([Chunk(1, context)] * plan.batch)
    return plan.batch / bound(step, rates).bound_s


def measure(
    models: Mapping[str, OpenModel],
    plan: Plan,
    threads: int,
    probe: Callable[[], MachineRates],
    tell: Callable[[str], None],
) -> dict[str, Speed]:
    """Every variant once per repetition, in turns, each right after a probe. Raises CheckFailed
    where a variant computes wrong in the configuration that is measured."""
    case = decode_case(plan)
    engines: dict[str, Engine] = {}
    speeds: dict[str, Speed] = {}
    pool = None
    for name, model in models.items():
        tell(f"checking {name} as it will be measured")
        settings = Settings()
        subject = make_subject(model, settings, threads)
        check(subject, case.batch)
        config = make_config(model, [case], settings, threads)
        executor = native_executor(model.program, config, weights=subject.weights, pool=pool)
        pool = executor.pool  # they take turns: one pool of workers serves all
        engines[name] = Engine(executor, vocabulary_of(model), config)
        held = sum(executor.read_block(g, 0).nbytes for g in range(len(executor.kv_groups)))
        speeds[name] = Speed(held / config.block_size)
    for repetition in range(plan.repetitions + 1):  # the first one warms up
        for name, engine in engines.items():
            tell(f"decoding with {name}, {repetition} of {plan.repetitions}")
            rates = probe()
            sample = run_case(engine, case)
            if repetition:
                _keep(speeds[name], sample, models[name].program, rates, plan)
    return speeds


def _keep(speed: Speed, sample: Sample, program: Outline, rates: MachineRates, plan: Plan) -> None:
    value = plan.batch * sample.num_decode_steps / sample.decode_s
    middle = sample.decode_start + 1 + sample.num_decode_steps // 2
    speed.tok_per_s.append(value)
    speed.of_bound.append(value / decode_bound(program, rates, plan, middle))
