"""A whole measurement: check, probe, warm up, then repetitions with a probe before each.

For every number of threads: the gate (gate.py) on exactly that configuration, an engine, one run of
each case that nobody counts, then the repetitions, which go through all cases in turn. The machine
is probed before and after every measurement, because its bandwidth changes within seconds; a case's
limit is derived from the medians of the probes next to its own runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.bench.cases import Case, Plan
from headrace.bench.conditions import bench_conditions
from headrace.bench.gate import check
from headrace.bench.measure import Sample, run_case
from headrace.bench.profile import OpTable, profile_case
from headrace.bench.rows import Row, rows_of
from headrace.bench.setup import Settings, check_context, make_config, make_subject, num_threads
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, native_executor, vocabulary_of
from headrace.errors import UsageError
from headrace.limits.machine import MachineProbe
from headrace.limits.rates import MachineRates, median_rates
from headrace.ops.cost import CostModel
from headrace.ops.kv import KVFormat
from headrace.verify.faults import NO_FAULT
from headrace.verify.ladder import Report as CheckReport
from headrace.verify.subject import Subject

#: Told what is about to happen, for a person who waits.
Notice = Callable[[str], None]
#: A repetition measures a short case again until it has seen so many seconds …
ENOUGH_S = 0.3
#: … but not more often than this; the median counts.
MOST_RUNS = 5


@dataclass(slots=True)
class ThreadResult:
    """What one number of threads gave. probes: all, in the order they were taken. probes_of: those
    right before and right after the runs of a case."""

    threads: int
    isa: str
    check: CheckReport
    probes: list[MachineRates] = field(default_factory=list)
    probes_of: dict[Case, list[MachineRates]] = field(default_factory=dict)
    samples: dict[Case, list[Sample]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    ops: list[OpTable] = field(default_factory=list)

    @property
    def rates(self) -> MachineRates:
        """The medians of all probes."""
        return median_rates(self.probes)


@dataclass(slots=True)
class BenchResult:
    """results: one per number of threads."""

    conditions: dict[str, Any]
    results: list[ThreadResult]


def run_bench(
    model: OpenModel, plan: Plan, settings: Settings, notice: Notice = lambda text: None
) -> BenchResult:
    """Measures. Raises UsageError or CapacityError for cases that the model or the memory cannot
    hold, CheckFailed when the configuration does not compute right."""
    cases = plan.cases()
    check_context(model, cases)
    counts = tuple(dict.fromkeys(num_threads(t) for t in settings.threads))
    configs = [make_config(model, cases, settings, count) for count in counts]
    result = BenchResult(bench_conditions(model, configs[0], plan.repetitions), [])
    weights = None
    for count, config in zip(counts, configs, strict=True):
        prefix = f"{count} threads: " if len(counts) > 1 else ""
        told = partial(_tell, notice, prefix)
        subject = make_subject(model, settings, count)
        subject.weights = weights
        report = _checked(subject, cases, settings, told)
        weights = subject.weights
        told("probing the machine")
        probe = MachineProbe(count, settings.isa)
        if probe.note is not None:
            result.conditions["probe_note"] = probe.note
        executor = native_executor(model.program, config, weights=weights, isa=settings.isa)
        engine = Engine(executor, vocabulary_of(model), config)
        one = ThreadResult(count, executor.isa, report)
        _repeat(engine, cases, plan.repetitions, probe, one, told)
        costs = CostModel(
            model.program, kv_format=KVFormat(config.kv_format), cache_bytes=probe.llc_bytes
        )
        for case in cases:
            one.rows += rows_of(case, one.samples[case], costs, median_rates(one.probes_of[case]))
            if settings.ops:
                told(f"timing the ops of {case.label}")
                one.ops += profile_case(engine, executor, case, costs, probe.rates())
        result.results.append(one)
    result.conditions["isa"] = result.results[0].isa
    result.conditions["load_average_after"] = round(os.getloadavg()[0], 2)
    return result


def _tell(notice: Notice, prefix: str, text: str) -> None:
    notice(prefix + text)


def _checked(
    subject: Subject, cases: Sequence[Case], settings: Settings, notice: Notice
) -> CheckReport:
    """What the gate says; a planted fault must not pass it."""
    subject.check()
    report = check(
        subject,
        max(case.batch for case in cases),
        on_start=lambda name: notice(f"checking: {name}"),
    )
    if settings.fault is not NO_FAULT:
        raise UsageError(
            f"The quick check does not see the fault {settings.fault.name}; "
            f"`headrace verify --inject {settings.fault.name}` climbs the whole ladder."
        )
    return report


def _repeat(
    engine: Engine,
    cases: Sequence[Case],
    repetitions: int,
    probe: MachineProbe,
    result: ThreadResult,
    notice: Notice,
) -> None:
    """Warm-up, then repetitions × cases, each between two probes."""
    for case in cases:
        notice(f"warming up: {case.label}")
        run_case(engine, case)
    result.probes.append(probe.rates())
    for repetition in range(repetitions):
        for case in cases:
            notice(f"repetition {repetition + 1} of {repetitions}: {case.label}")
            result.samples.setdefault(case, []).append(median_run(engine, case))
            result.probes.append(probe.rates())
            result.probes_of.setdefault(case, []).extend(result.probes[-2:])


def median_run(engine: Engine, case: Case) -> Sample:
    """The median run of as many as it takes to see ENOUGH_S."""
    runs = [run_case(engine, case)]
    while sum(run.seconds for run in runs) < ENOUGH_S and len(runs) < MOST_RUNS:
        runs.append(run_case(engine, case))
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
