"""kv-cache: what does keeping keys and values change? Not the logits; the time, and the memory.

Two public paths of the engine answer: `kv_allocator="none"` computes the whole history in every
step, the usual one computes one position and reads the rest from the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import GREEDY, run_case
from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, build_engine
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.kv_memory import CHECK_VALUES, KVShape, measured_bytes, variations
from headrace.lab.parts.memory import FreshProcesses
from headrace.lab.plots import style
from headrace.lab.statistics import (
    Interval,
    exact,
    fit_line,
    fit_power,
    largest,
    median_interval,
    ratio_interval,
)
from headrace.lab.values import Check, Findings, Prediction, Table
from headrace.lab.values import Kind as Sense
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.verify.probe import GREEDY as EIGHT_TOKENS
from headrace.verify.probe import Run, run_requests
from headrace.verify.result import Logits, difference
from headrace.verify.subject import Subject

#: Positions in the history when a step is timed.
LENGTHS = (64, 128, 256, 512, 1024, 2048)
#: Growth is fitted from here on: below, what a step costs whatever its length hides it.
FIT_FROM = 256
#: Prompt and output of whole answers, with the speed-up that people are told to expect.
ANSWERS = {(256, 128): (5.0, 10.0), (1024, 1024): (20.0, 30.0)}
#: Tokens of an answer that is not run without the cache.
_LONG = 1000
_TOKENS = 12
_PATHS = ("cached", "no cache")


class KVCache(Experiment):
    name = "kv-cache"
    title = "The KV cache: the same logits, less time, more memory"
    question = "What does it change when keys and values of old positions are kept?"
    claim = (
        "Logits stay the same. A step's time (nearly) stops growing with the history, so an "
        "answer's time grows linearly instead of quadratically: 5-10× faster at 256 + 128 tokens, "
        "20-30× at 1k + 1k. The price is 2 · L · K · D · S · bytes per sequence."
    )
    quick_s, full_s = 75.0, 300.0
    faults = ("cache-position", "rope-offset", "mask-off-by-one", "row-swap")
    try_this = (
        "headrace lab run kv-cache --inject rope-offset: the first token is right, later ones "
        "drift, and the check says at which step",
        "headrace lab run kv-cache --inject row-swap: right at batch 1, wrong at batch 2",
        "headrace lab run kv-cache --model qwen2.5-coder-0.5b: 2 KV heads instead of 3, a larger "
        "model around them",
        "headrace generate MODEL -p … --kv-allocator none --stats: the slow path by hand",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        costs, rates = lab.costs(), lab.rates()
        lengths = _lengths(lab.open())
        fitted = [s for s in lengths if s >= FIT_FROM]
        steps = {path: [_bound_s(costs, rates, path, s) for s in lengths] for path in _PATHS}
        longest = lengths[-1]
        found = [
            Prediction(
                "decode_ms",
                f"a cached step at {longest:,} positions",
                1e3 * steps["cached"][-1],
                "ms",
                "bound of the step; nothing can be faster",
                Sense.AT_LEAST,
                tolerance=1.1,
            ),
            Prediction(
                "step_exponent",
                f"growth of an uncached step with the history S ≥ {FIT_FROM}",
                fit_power(fitted, steps["no cache"][-len(fitted) :]).exponent.value,
                "exponent",
                "power law through the bounds of the same steps",
                tolerance=1.0,
                slack=0.15,
            ),
            Prediction(
                "total_exponent",
                f"growth of an uncached answer's time with its length S ≥ {FIT_FROM}",
                fit_power(fitted, _totals(lengths, steps["no cache"])[-len(fitted) :])
                .exponent.value,
                "exponent",
                "power law through sums of those bounds",
                tolerance=1.0,
                slack=0.15,
            ),
            Prediction(
                "grown",
                f"time of a cached step at {longest:,} positions ÷ at {lengths[0]:,}",
                steps["cached"][-1] / steps["cached"][0],
                "×",
                "ratio of the bounds: weights and keys and values ÷ read bandwidth",
            ),
        ]  # fmt: skip
        for prompt, output in _answers(lengths):
            speed_up = _answer_bound_s(costs, rates, "no cache", prompt, output) / _answer_bound_s(
                costs, rates, "cached", prompt, output
            )
            found.append(
                Prediction(
                    f"speed_up_{prompt}_{output}",
                    f"speed-up of the cache at {prompt} + {output} tokens",
                    speed_up,
                    "×",
                    "bounds of all steps of both paths, summed",
                    tolerance=1.5,
                )
            )
        return found + [
            Prediction(
                f"memory_{shape.kv_heads}",
                f"memory of a written cache, {shape}, {shape.format.value}",
                shape.formula_bytes / 2**20,
                "MiB",
                "2 · L · K · D · S · bytes",
                tolerance=1.01,
            )
            for shape in CHECK_VALUES
        ]

    def check(self, lab: Lab) -> list[Check]:
        try:
            return self._compare(lab)
        except RuntimeError as error:  # of the path under test: that is a failed check
            return [Check("both paths run", False, str(error))]

    def _compare(self, lab: Lab) -> list[Check]:
        subject = lab.subject()
        with lab.stage("logits with and without the cache", 0.6):
            prompts = _prompts(subject)
            anew = [_run(subject, [prompt], "none") for prompt in prompts]
            alone, pair = (_run(subject, some, "paged") for some in (prompts[:1], prompts))
            checks = [
                _same_steps("batch 1: cached = no cache", anew, alone),
                _same_steps("batch 2: cached = no cache, each alone", anew, pair),
                _same_steps(
                    "batch 2: no cache = no cache, each alone",
                    anew,
                    _run(subject, prompts, "none"),
                ),
            ]
        with lab.stage("logits against the reference", 0.4):
            return [*checks, _against_reference(subject, prompts, pair)]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        engines = _engines(lab)
        with lab.stage("steps at growing lengths", 0.4):
            steps = _measure_steps(lab, engines, 5 if lab.quick else 9)
        _report_steps(lab, steps, found)
        with lab.stage("whole answers", 0.45):
            _measure_answers(lab, engines, steps, found)
        with lab.stage("memory", 0.15):
            _measure_memory(lab, found)
        return found


# ---- correctness --------------------------------------------------------------------------------


def _prompts(subject: Subject) -> list[list[int]]:
    """Two of unequal length: one ends inside a block, the other goes over a border of tiles."""
    text = subject.workload.text
    return [text[:37], text[100:223]]


def _run(subject: Subject, prompts: list[list[int]], allocator: str) -> Run:
    engine = subject.engine(max_num_seqs=len(prompts), kv_allocator=allocator)
    return run_requests(*engine, prompts, EIGHT_TOKENS.replace(max_tokens=_TOKENS))


def _same_steps(name: str, alone: Sequence[Run], together: Run) -> Check:
    """Compares the logits of every request of `together` with the run of it alone, step by step for
    as long as both have drawn the same tokens; tells the first step that differs."""
    worst, num_rows, firsts = 0.0, 0, list[int]()
    for request, histories in enumerate(together.tokens):
        expected, [history] = alone[request].tokens[0][0], histories
        rows = zip(_in_order(alone[request], 0), _in_order(together, request), strict=True)
        for step, (a, b) in enumerate(rows):
            if expected[:step] != history[:step]:
                break
            num_rows += 1
            error = difference({(0, 0, step): a}, {(0, 0, step): b})
            if error > 0:
                worst = max(worst, error)
                firsts.append(step)
    told = f"max |Δ| {worst:.3g} over {num_rows} steps"
    if firsts:
        told += f"; the first that differs is number {min(firsts) + 1}"
    return Check(name, not firsts, told)


def _in_order(run: Run, request: int) -> list[Logits]:
    """Rows that tokens were drawn from, in order of their positions."""
    own = {position: row for (r, _, position), row in run.rows.items() if r == request}
    return [own[position] for position in sorted(own)]


def _against_reference(subject: Subject, prompts: list[list[int]], run: Run) -> Check:
    """Every cached step of both requests against torch's dense mathematics."""
    import torch

    from headrace.verify.reference import expected_logits

    num_rows, errors, bounds = 0, list[float](), list[float]()
    for request, prompt in enumerate(prompts):
        rows = _in_order(run, request)
        ids = prompt + run.tokens[request][0][:-1]
        at = list(range(len(prompt) - 1, len(ids)))
        expected = expected_logits(subject.program, ids, at, subject.kv_format)
        error = float((torch.tensor(np.stack(rows)).double() - expected.plain).abs().max())
        bounds.append(expected.bound)
        errors.append(error / expected.bound)
        num_rows += len(rows)
    worst = largest(errors)
    return Check(
        "batch 2, cached = reference (torch, no cache) within the formats' bound",
        worst <= 1.0,
        f"error ÷ bound {worst:.2f} over {num_rows} steps; bounds "
        + ", ".join(f"{b:.2f}" for b in bounds),
    )


# ---- limits -------------------------------------------------------------------------------------


def _bound_s(costs: CostModel, rates: MachineRates, path: str, history: int) -> float:
    """Least seconds of a step that has `history` positions when it ends."""
    num_new = 1 if path == "cached" else history
    return bound(costs.step([Chunk(num_new, history)]), rates).bound_s


def _answer_bound_s(
    costs: CostModel, rates: MachineRates, path: str, prompt: int, output: int
) -> float:
    first = bound(costs.step([Chunk(prompt, prompt)]), rates).bound_s
    rest = (_bound_s(costs, rates, path, prompt + n) for n in range(1, output))
    return first + sum(rest)


def _totals(lengths: Sequence[int], step_s: Sequence[float]) -> list[float]:
    """Seconds until each length is reached from nothing, a step per position: the steps between
    the measured lengths are taken to lie on straight lines."""
    spans = [lengths[0], *(b - a for a, b in itertools.pairwise(lengths))]
    means = [step_s[0], *((a + b) / 2 for a, b in itertools.pairwise(step_s))]
    return list(itertools.accumulate(n * s for n, s in zip(spans, means, strict=True)))


# ---- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Steps:
    """By length, by repetition: seconds. bounds: of the cached step, by length."""

    lengths: list[int]
    prefill: list[list[float]]
    cached: list[list[float]]
    anew: list[list[float]]
    bounds: list[float]


def _lengths(model: OpenModel) -> list[int]:
    return [s for s in LENGTHS if s + 32 <= model.program.max_context]


def _engines(lab: Lab) -> dict[str, Engine]:
    longest = _lengths(lab.open())[-1] + 32

    def engine(allocator: str) -> Engine:
        options = EngineOptions(
            max_model_len=longest,
            max_num_seqs=1,
            kv_allocator=allocator,
            num_threads=lab.threads,
        )
        return build_engine(lab.open(), options)

    return {"cached": engine("paged"), "no cache": engine("none")}


def _measure_steps(lab: Lab, engines: Mapping[str, Engine], repetitions: int) -> _Steps:
    lengths, costs = _lengths(lab.open()), lab.costs()
    ids = lab.english(lengths[-1] + 32)
    found = _Steps(lengths, [[] for _ in lengths], [[] for _ in lengths], [[] for _ in lengths], [])
    for number in range(1 + repetitions):  # the first warms up
        for i, length in enumerate(lengths):
            prefill = run_case(engines["cached"], Case(Kind.PREFILL, length, 0)).seconds
            decode = run_case(engines["cached"], Case(Kind.DECODE, 0, 16, depth=length))
            anew = _step_anew(engines["no cache"], ids[:length])
            if number:
                found.prefill[i].append(prefill)
                found.cached[i].append(decode.seconds / 16)
                found.anew[i].append(anew)
        lab.tell("steps at growing lengths", number / repetitions)
    rates = lab.rates()
    found.bounds.extend(_bound_s(costs, rates, "cached", s + 8) for s in lengths)
    return found


def _step_anew(engine: Engine, ids: list[int]) -> float:
    """Seconds of one uncached step: the second one, as the first is the prefill."""
    engine.add(ids[:-1], GREEDY.replace(max_tokens=2))
    engine.step()
    begin = perf_counter()
    engine.step()
    seconds = perf_counter() - begin
    assert not engine.has_work
    return seconds


def _report_steps(lab: Lab, steps: _Steps, found: Findings) -> None:
    lengths = steps.lengths
    prefill, cached, anew = (
        [median_interval(samples) for samples in kind]
        for kind in (steps.prefill, steps.cached, steps.anew)
    )
    anew_runs, cached_runs = (list(zip(*kind, strict=True)) for kind in (steps.anew, steps.cached))
    step_growth = _growth(lengths, anew_runs)
    total_growth = _growth(lengths, [_totals(lengths, run) for run in anew_runs])
    cached_growth = _growth(lengths, [_totals(lengths, run) for run in cached_runs])
    slope = _of_runs([fit_line(lengths, run)[0].value for run in cached_runs])
    grown = ratio_interval(steps.cached[-1], steps.cached[0])
    found.measured |= {
        "decode_ms": cached[-1].scaled(1e3),
        "step_exponent": step_growth,
        "total_exponent": total_growth,
        "grown": grown,
        "cached_total_exponent": cached_growth,
    }
    found.tables.append(
        Table(
            "steps",
            [
                "positions",
                "prefill ms",
                "cached ms/token",
                "low",
                "high",
                "bound ms",
                "no cache ms/token",
                "low ",
                "high ",
                "ratio",
            ],
            [
                [
                    s,
                    _ms(prefill[i].value),
                    *(_ms(v) for v in cached[i].ends),
                    _ms(steps.bounds[i]),
                    *(_ms(v) for v in anew[i].ends),
                    round(anew[i].value / cached[i].value, 1),
                ]
                for i, s in enumerate(lengths)
            ],
            f"One sequence. {cached[0].n} runs in turns; low, high: {cached[0].what}. An uncached "
            f"step is a prefill of the whole history.",
        )
    )
    found.conclude(
        f"A cached step takes {slope.scaled(1e9):.0f} ns longer per position: {grown:.2f} times as "
        f"long at {lengths[-1]:,} positions as at {lengths[0]:,}.",
        slope.low > 0 and grown.low > 1,
    )
    found.conclude(
        f"Between {FIT_FROM} and {lengths[-1]:,} tokens an answer's time, summed from these steps, "
        f"grows as length^{cached_growth:.2f} with the cache and as length^{total_growth:.2f} "
        f"without.",
        cached_growth.high < total_growth.low,
    )
    _draw_steps(lab, steps, {"cached": cached_growth.value, "no cache": total_growth.value})


def _growth(lengths: Sequence[int], runs: Sequence[Sequence[float]]) -> Interval:
    """Exponent of a power law from FIT_FROM on. Each run is fitted by itself: lengths of one run
    share its minute, and the bend of the curve, which the prediction has too, is no error."""
    fitted = [i for i, s in enumerate(lengths) if s >= FIT_FROM]
    x = [lengths[i] for i in fitted]
    return _of_runs([fit_power(x, [run[i] for i in fitted]).exponent.value for run in runs])


def _of_runs(values: Sequence[float]) -> Interval:
    found = median_interval(values)
    return replace(found, what=f"fits of single runs, {found.what}")


def _draw_steps(lab: Lab, steps: _Steps, growths: Mapping[str, float]) -> None:
    lengths = steps.lengths
    middles = {
        path: [median_interval(samples).value for samples in kind]
        for path, kind in (("no cache", steps.anew), ("cached", steps.cached))
    }
    slope, start = fit_line(lengths, middles["cached"])
    with lab.figure(
        "steps",
        "One step, and a whole answer, by length. Dashed: constant + linear through the cached "
        "steps, power laws through the rest.",
        "Left: milliseconds per step over positions, with the cache, without it, and of a prefill. "
        "Right: seconds until that many tokens, with the cache and without it.",
        columns=2,
    ) as (_, axes):
        for number, (label, kind) in enumerate(
            (("no cache", steps.anew), ("cached", steps.cached), ("prefill", steps.prefill))
        ):
            middle = [median_interval(samples).scaled(1e3) for samples in kind]
            errors = [[i.value - i.low for i in middle], [i.high - i.value for i in middle]]
            look = style(number) | {"linestyle": ":" if label == "prefill" else "-"}
            axes[0].errorbar(lengths, [i.value for i in middle], yerr=errors, label=label, **look)
        line = [1e3 * (start + slope.value * s) for s in lengths]
        axes[0].plot(lengths, line, "--", color="#555555", linewidth=1.0, marker="")
        axes[0].set_ylabel("ms per step")
        x = [s for s in lengths if s >= FIT_FROM]
        for number, path in enumerate(("no cache", "cached")):
            look = style(number) | {"linestyle": "-"}
            totals = _totals(lengths, middles[path])
            axes[1].plot(lengths, totals, label=path, **look)
            fit = fit_power(x, totals[-len(x) :])
            axes[1].plot(x, [fit.at(s) for s in x], "--", color="#555555", linewidth=1.0, marker="")
            axes[1].annotate(
                f"length^{growths[path]:.2f}", (x[-1], fit.at(x[-1])), xytext=(-8, 6),
                textcoords="offset points", ha="right",
            )  # fmt: skip
        axes[1].set_ylabel("seconds until that many tokens")
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(lengths, [str(s) for s in lengths])
            axis.minorticks_off()
            axis.set_xlabel("positions")
        axes[0].legend()


# ---- whole answers ------------------------------------------------------------------------------


def _answers(lengths: Sequence[int]) -> list[tuple[int, int]]:
    return [(p, n) for p, n in ANSWERS if p + n <= lengths[-1]]


def _measure_answers(
    lab: Lab, engines: Mapping[str, Engine], steps: _Steps, found: Findings
) -> None:
    """Short answers are run both ways in turns. A long one without the cache would take minutes: it
    is summed from the measured steps, as the short one is, too, to see how good such a sum is."""
    rows: list[list[str | float | int | None]] = []
    sums: Interval | None = None
    for prompt, output in _answers(steps.lengths):
        ids, how = lab.english(prompt), "summed from its steps"
        cached, anew = list[float](), list[float]()
        summed = median_interval(_summed(steps, prompt, output))
        for number in range(3 if lab.quick else 5):
            lab.tell(f"answer of {prompt} + {output}, run {number + 1}")
            seconds, text = _answer(engines["cached"], ids, output)
            cached.append(seconds)
            if prompt + output < _LONG:
                seconds, other = _answer(engines["no cache"], ids, output)
                assert other == text, "the paths part after the check has passed"
                anew.append(seconds)
        slow = summed
        speed_up = summed.over(median_interval(cached))
        if anew:
            how, slow, speed_up = "run", median_interval(anew), ratio_interval(anew, cached)
            sums = summed.over(slow)
        found.measured[f"speed_up_{prompt}_{output}"] = speed_up
        low, high = ANSWERS[prompt, output]
        rows.append(
            [
                f"{prompt} + {output}",
                round(median_interval(cached).value, 3),
                round(slow.value, 2),
                how,
                *(round(v, 1) for v in speed_up.ends),
                f"{low:.0f}-{high:.0f}",
            ]
        )
        found.conclude(
            f"At {prompt} + {output} tokens the cache made the answer {speed_up:.1f} times as fast"
            f"{'' if anew else _of_what(output, slow, sums)}; people are told "
            f"{low:.0f}-{high:.0f}×.{_compared(steps, speed_up, low, high)}",
            speed_up.low > 1,
        )
    found.tables.append(
        Table(
            "answers",
            [
                "prompt + output",
                "cached s",
                "no cache s",
                "no cache is",
                "speed-up",
                "low",
                "high",
                "people are told",
            ],
            rows,
            f"One sequence, prefill included, model load and warm-up not; medians. low, high: of "
            f"{len(cached)} runs in turns the range; of a sum as far apart as its range and that "
            f"of the runs allow.",
        )
    )


def _of_what(output: int, slow: Interval, sums: Interval | None) -> str:
    """How the uncached time was had, where the answer was not run."""
    told = (
        f"; without it {slow:,.0f} s, not run but summed over {output:,} steps on lines between "
        f"measured ones"
    )
    if sums is None:
        return told
    return f"{told} (such a sum was {sums:.2f} times what the short answer took)"


def _compared(steps: _Steps, speed_up: Interval, low: float, high: float) -> str:
    """What decides how much a cache saves: how much more a step of many tokens costs than one of
    one."""
    if speed_up.low <= high and low <= speed_up.high:
        return ""
    at = steps.lengths.index(FIT_FROM) if FIT_FROM in steps.lengths else -1
    ratio = ratio_interval(steps.anew[at], steps.cached[at])
    return (
        f" It is the cost of many positions over that of one: here a step of {steps.lengths[at]} "
        f"tokens takes {ratio:.0f} times as long as a step of one; where that is less, a cache "
        f"saves less."
    )


def _answer(engine: Engine, ids: list[int], output: int) -> tuple[float, list[int]]:
    engine.cache.clear()
    begin = perf_counter()
    request = engine.add(ids, GREEDY.replace(max_tokens=output))
    while engine.has_work:
        engine.step()
    return perf_counter() - begin, list(request.generations[0].token_ids)


def _summed(steps: _Steps, prompt: int, output: int) -> list[float]:
    """Seconds of an uncached answer by repetition: steps of histories prompt … prompt + output − 1,
    on straight lines between the measured ones."""
    histories = range(prompt, prompt + output)
    return [
        float(np.interp(histories, steps.lengths, run).sum())
        for run in zip(*steps.anew, strict=True)
    ]


# ---- memory -------------------------------------------------------------------------------------


def _measure_memory(lab: Lab, found: Findings) -> None:
    [*_, group] = lab.open().program.kv_groups
    base = KVShape(len(group.layers), group.kv_heads, group.k_dim, 2048)
    shapes = variations(base)
    measured: dict[KVShape, int | None] = {}
    with FreshProcesses(["headrace.lab.parts.kv_memory"]) as fresh:
        wanted = [s for group in shapes.values() for s in group] + list(CHECK_VALUES)
        for number, shape in enumerate(wanted):
            if shape not in measured:
                measured[shape] = measured_bytes(fresh, shape)
            lab.tell("memory", (number + 1) / len(wanted))
    for shape in CHECK_VALUES:
        taken = measured[shape]
        if taken is not None:
            found.measured[f"memory_{shape.kv_heads}"] = exact(taken / 2**20, "one allocation")
        else:
            found.notes.append(f"{shape}: left out, there is not enough free memory for it.")
    rows = [(what, s) for what, group in shapes.items() for s in group]
    rows += [("check value", s) for s in CHECK_VALUES]
    found.tables.append(
        Table(
            "memory",
            ["varied", "L", "K", "D", "S", "formula MiB", "allocated MiB", "measured MiB",
             "measured ÷ formula"],
            [
                [what, s.layers, s.kv_heads, s.head_dim, s.positions, _mib(s.formula_bytes),
                 _mib(s.allocated_bytes), _mib(measured[s]), _share(measured[s], s.formula_bytes)]
                for what, s in rows
            ],
            "Measured: anonymous memory of a fresh process, before a pool was allocated and after "
            "every position of it was written; bf16, check values f16. Allocated: whole blocks of "
            "16 positions, each an odd number of pages long.",
        )
    )  # fmt: skip
    shares = [taken / s.formula_bytes for s, taken in measured.items() if taken is not None]
    blocks = [taken / s.allocated_bytes for s, taken in measured.items() if taken is not None]
    found.conclude(
        f"{len(shares)} written caches took {min(shares):.3f} … {max(shares):.3f} × the formula; "
        f"of what their blocks should take with the pages between them "
        f"{min(blocks):.3f} … {max(blocks):.3f} ×. So memory is proportional to layers, KV heads "
        f"and context.",
        max(blocks) < 1.02 and min(blocks) > 0.98,
    )
    _draw_memory(lab, shapes, measured)


def _draw_memory(
    lab: Lab, shapes: dict[str, list[KVShape]], measured: dict[KVShape, int | None]
) -> None:
    numbers = {"layers": "layers", "KV heads": "kv_heads", "context": "positions"}
    with lab.figure(
        "memory",
        "Memory of a written KV cache: formula (lines) and the kernel's count (points).",
        "Three panels: MiB over layers, KV heads and context; points beside the formula's lines.",
        columns=len(shapes),
    ) as (_, axes):
        for number, (what, group) in enumerate(shapes.items()):
            x = [getattr(s, numbers[what]) for s in group]
            axis = axes[number]
            axis.plot(
                x, [_mib(s.formula_bytes) for s in group], color="#555555", marker="",
                linestyle="-", linewidth=1.2, label="2 · L · K · D · S · bytes",
            )  # fmt: skip
            look = style(number) | {"linestyle": "none"}
            axis.plot(x, [_mib(measured[s]) for s in group], label="measured", **look)
            axis.set_xlabel(what)
            axis.set_xlim(0, None)
            axis.set_ylim(0, None)
            axis.set_title(str_of_fixed(group[0], what))
        axes[0].set_ylabel("MiB")
        axes[0].legend()


def str_of_fixed(shape: KVShape, what: str) -> str:
    """What does not vary in a panel."""
    letter = {"layers": "L", "KV heads": "K", "context": "S"}[what]
    return ", ".join(part for part in str(shape).split(", ") if not part.startswith(letter))


# ---- small things -------------------------------------------------------------------------------


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _mib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / 2**20, 2)


def _share(taken: int | None, formula: int) -> float | None:
    return None if taken is None else round(taken / formula, 4)
