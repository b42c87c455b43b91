"""Headrace and other engines on one model, in one interleaved run.

Every engine sits loaded in its own process. Each repetition goes through the tests, and for each
test through the engines one after the other, so that two values that are compared were measured
seconds apart. Same token ids, same lengths, same number of threads, greedy. Seconds are taken
inside the processes. An engine that fails drops out with its reason; the run goes on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.bench.conditions import machine_conditions
from headrace.bench.gate import check
from headrace.bench.others import Others
from headrace.bench.peers.catalog import HEADRACE, PeerEntry
from headrace.bench.peers.peer import CannotRun, Load, Measured
from headrace.bench.peers.process import WorkerFailed, WorkerProcess
from headrace.bench.setup import Settings, make_subject, num_threads
from headrace.engine.model import open_model
from headrace.errors import UsageError
from headrace.formats.fetching import Reporter
from headrace.limits.machine import MachineProbe
from headrace.limits.rates import MachineRates, median_rates
from headrace.limits.workloads import RunLimit, batch_limit, decode_limit, prefill_limit
from headrace.ops.cost import CostModel

Encode = Callable[[str], list[int]]
#: Called with what is about to happen, for a person who waits.
Notice = Callable[[str], None]

#: A repetition measures a short test again until it has seen so many seconds …
ENOUGH_S = 0.5
#: … but not more often than this.
MOST_RUNS = 5
#: A value is measured again when others took more than this share of the CPUs, …
DISTURBED = 0.1
#: … so often in all; the least disturbed counts.
MOST_TRIES = 3

_TEXT = (
    "A mill stands where the water leaves the river and enters a narrow channel. The miller opens "
    "the gate in the morning, listens to the wheel, and writes the level into a book: 41, 38, 36. "
    "def flow(width, depth, speed): return width * depth * speed  # cubic metres per second\n"
    "In dry years the pond is empty by August, and the village buys its flour from the coast. "
    "Nobody knows who dug the second channel, but its banks are straighter than the first, and "
    "the stones under the bridge carry numbers that no drawing explains. "
)


@dataclass(frozen=True, slots=True)
class Plan:
    """prompt: tokens of the prompt test. generate: tokens of the generation tests. depth: tokens
    already in the cache when generation starts. sequences: batch sizes; 1 stands for the prompt
    and the generation test. batch_prompt: prompt tokens of each sequence of a batch. num_threads:
    None = all CPUs this process may use."""

    prompt: int = 512
    generate: int = 64
    depth: int = 1
    sequences: tuple[int, ...] = (1,)
    batch_prompt: int = 128
    repetitions: int = 3
    num_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Test:
    """One measurement. tokens: what a rate counts. prompts: of one or several sequences."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    generate: int
    tokens: int

    def run(self, worker: WorkerProcess) -> Measured:
        """Once."""
        if len(self.prompts) > 1:
            return worker.batch(self.prompts, self.generate)
        if self.generate:
            return worker.decode(self.prompts[0], self.generate)
        return worker.prefill(self.prompts[0])

    def repeat(self, worker: WorkerProcess) -> Measured:
        """Again until ENOUGH_S have been measured, at most MOST_RUNS times; the median. A first
        short run is not counted: the engine was stopped, and its caches and cores have gone cold.
        """
        runs = [self.run(worker)]
        if runs[0].seconds < ENOUGH_S:
            runs = [self.run(worker)]
        while sum(r.seconds for r in runs) < ENOUGH_S and len(runs) < MOST_RUNS:
            runs.append(self.run(worker))
        return Measured(statistics.median(r.seconds for r in runs), runs[-1].tokens)

    def warm_up(self, worker: WorkerProcess) -> None:
        """The same kind of work, shorter: memory is touched and pools have started."""
        Test(self.name, self.prompts[:4], min(self.generate, 2), 0).run(worker)


@dataclass(slots=True)
class Outcome:
    """One engine. facts: how it was built and set. rates: test name → tokens/s of each repetition.
    others: the same for the share of the CPUs that other processes took meanwhile. tokens: test
    name → ids it drew. reason: why it stopped taking part, else None."""

    entry: PeerEntry
    facts: dict[str, str] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    reason: str | None = None


@dataclass(slots=True)
class Comparison:
    """outcomes[0] is Headrace. probes: test name → of the machine, before and after each of its
    rounds. limits: test name → the least time that its work takes at the medians of its probes.
    idle_cpu_s: CPU time that waiting engines took during measurements, all together (0 = nobody
    disturbed anybody)."""

    tests: tuple[Test, ...]
    outcomes: list[Outcome]
    probes: dict[str, list[MachineRates]] = field(default_factory=dict)
    limits: dict[str, RunLimit] = field(default_factory=dict)
    idle_cpu_s: float = 0.0


def make_tests(plan: Plan, encode: Encode) -> tuple[Test, ...]:
    """The tests of a plan. encode: the model's tokenizer; prompts are cut from one text, those of
    a batch from different places, so that no two share a beginning."""
    longest = max(plan.prompt, plan.depth, plan.batch_prompt)
    text = encode(_TEXT)
    offsets = max(max(plan.sequences) * 3, 1)
    ids = text * ((longest + offsets) // len(text) + 1)
    tests = []
    for count in plan.sequences:
        if count == 1:
            if plan.prompt:
                prompt = tuple(ids[: plan.prompt])
                tests.append(Test(f"pp{plan.prompt}", (prompt,), 0, plan.prompt))
            if plan.generate:
                at = f"@{plan.depth}" if plan.depth > 1 else ""
                start = tuple(ids[: plan.depth])
                tests.append(Test(f"tg{plan.generate}{at}", (start,), plan.generate, plan.generate))
        else:
            prompts = tuple(tuple(ids[3 * i : 3 * i + plan.batch_prompt]) for i in range(count))
            total = count * (plan.batch_prompt + plan.generate)
            name = f"{count}×({plan.batch_prompt}+{plan.generate})"
            tests.append(Test(name, prompts, plan.generate, total))
    return tuple(tests)


def compare(
    model: Path,
    tests: Sequence[Test],
    peers: Sequence[PeerEntry],
    *,
    num_threads: int,
    repetitions: int,
    notice: Notice = lambda _: None,
    between: Callable[[Test], None] = lambda _: None,
) -> Comparison:
    """Runs it all. between: called before each repetition, with every engine stopped (a probe of
    the machine)."""
    result = Comparison(tuple(tests), [Outcome(entry) for entry in (HEADRACE, *peers)])
    load = load_of(model, tests, num_threads)
    with ExitStack() as stack:
        workers = {}
        for outcome in result.outcomes:
            notice(f"{outcome.entry.title}: loading")
            worker = WorkerProcess(outcome.entry, environment={"OMP_NUM_THREADS": str(num_threads)})
            stack.enter_context(worker)
            if _load(worker, load, tests, outcome):
                workers[outcome.entry.name] = worker
        for repetition in range(repetitions):
            for test in tests:
                between(test)
                for outcome in result.outcomes:
                    if outcome.reason is None:
                        notice(
                            f"repetition {repetition + 1} of {repetitions}: {test.name}, "
                            f"{outcome.entry.title}"
                        )
                        _measure(workers, test, outcome, result)
                between(test)
    return result


def measure_model(
    model: str,
    plan: Plan,
    peers: Sequence[PeerEntry],
    *,
    offline: bool = False,
    progress: Reporter | None = None,
    notice: Notice = lambda _: None,
) -> tuple[Comparison, dict[str, Any]]:
    """`compare` on a model by name after the quick check of the same configuration, and the
    conditions of the figures. Raises UsageError for a plan that the model's context cannot hold,
    CheckFailed where Headrace computes wrong, ModelSourceError or ModelFileError."""
    opened = open_model(model, offline=offline or None, progress=progress)
    program = opened.program
    tests = make_tests(plan, lambda text: opened.tokenizer.encode(text, add_special=False))
    for test in tests:
        needed = len(test.prompts[0]) + test.generate + 1
        if needed > program.max_context:
            raise UsageError(
                f"{test.name} needs a context of {needed} tokens, and {model} has "
                f"{program.max_context}."
            )
    threads = num_threads(plan.num_threads)
    subject = make_subject(opened, Settings(), threads)
    subject.check()
    checked = check(
        subject,
        max(len(test.prompts) for test in tests),
        on_start=lambda n: notice(f"checking: {n}"),
    )
    del subject  # its weights and buffers
    probe = MachineProbe(threads)
    probes: dict[str, list[MachineRates]] = {test.name: [] for test in tests}
    result = compare(
        opened.path,
        tests,
        peers,
        num_threads=threads,
        repetitions=plan.repetitions,
        notice=notice,
        between=lambda test: probes[test.name].append(probe.rates()),
    )
    result.probes = probes
    costs = CostModel(program, cache_bytes=probe.llc_bytes)
    result.limits = {
        test.name: limit_of(test, costs, median_rates(probes[test.name])) for test in tests
    }
    conditions = machine_conditions() | {
        "model": model,
        "weights": ", ".join(sorted({t.format.name for t in program.weights.values()})),
        "threads": threads,
        "isa": probe.isa,
        "repetitions": plan.repetitions,
        "checked": [rung.name for rung in checked.rungs],
    }
    return result, conditions


def limit_of(test: Test, costs: CostModel, rates: MachineRates) -> RunLimit:
    """The limit of a test's work (limits/workloads.py)."""
    length = len(test.prompts[0])
    if len(test.prompts) > 1:
        return batch_limit(costs, rates, len(test.prompts), length, test.generate)
    if test.generate:
        return decode_limit(costs, rates, test.generate, depth=length)
    return prefill_limit(costs, rates, length)


def load_of(model: Path, tests: Sequence[Test], num_threads: int) -> Load:
    """The room that the tests need."""
    single = [t for t in tests if len(t.prompts) == 1]
    batches = [t for t in tests if len(t.prompts) > 1]

    def longest(some: Sequence[Test]) -> int:
        return max((len(t.prompts[0]) + t.generate + 1 for t in some), default=16)

    return Load(
        model,
        num_threads,
        max_context=longest(single),
        num_sequences=max((len(t.prompts) for t in tests), default=1),
        batch_context=longest(batches),
    )


def _load(worker: WorkerProcess, load: Load, tests: Sequence[Test], outcome: Outcome) -> bool:
    try:
        outcome.facts = worker.load(load)
        for test in tests:
            test.warm_up(worker)
    except (CannotRun, WorkerFailed) as error:
        outcome.reason = str(error)
        return False
    return True


def _measure(
    workers: dict[str, WorkerProcess], test: Test, outcome: Outcome, result: Comparison
) -> None:
    worker = workers[outcome.entry.name]
    idle = [w for w in workers.values() if w is not worker]
    best: tuple[float, Measured] | None = None
    for _ in range(MOST_TRIES):
        before = sum(w.cpu_seconds() for w in idle)
        try:
            with Others(worker) as others:
                measured = test.repeat(worker)
        except (CannotRun, WorkerFailed) as error:
            outcome.reason = str(error)
            return
        result.idle_cpu_s += sum(w.cpu_seconds() for w in idle) - before
        if best is None or others.share < best[0]:
            best = (others.share, measured)
        if others.share < DISTURBED:
            break
    assert best is not None
    share, measured = best
    outcome.rates.setdefault(test.name, []).append(test.tokens / measured.seconds)
    outcome.others.setdefault(test.name, []).append(share)
    outcome.tokens[test.name] = measured.tokens
