"""How near `headrace plan` comes: predicted times and memory next to measured ones.

    python tools/bench_plan.py [--models …] [--batches 1,16] [--contexts 128,2048] [--cells FILE]
    python tools/bench_plan.py --memory [--models …]
    python tools/bench_plan.py --write --cells FILE      docs/plan-accuracy.md from what FILE holds

Times: the machine is calibrated (`headrace plan --calibrate`: synthetic models, no timing of a real
one), or --calibration names one. Then every cell, a model at a batch and a context, is measured as
`headrace bench run` does it, on the engine, with the probe before and after; a run during which
other processes took more than a tenth of the CPUs is repeated. From the medians of those probes and
the calibration, `plan` predicts the cell. TTFT is the mean over the batch; TPOT is the time of a
step in which all sequences generate.

Memory: a process of its own per cell fills an engine to the plan's maximum, all sequences at once,
prompts as long as the context allows, and reports the peak of its anonymous memory; that of a
process which has only started Python is taken off.

--cells FILE keeps what was measured; cells that are there already are not measured again, so a long
comparison can be taken in pieces. Exit status 1 where an aim is missed: median 20 %, worst 40 % for
times, 5 % for memory.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from headrace.bench.cases import Case, Kind
from headrace.bench.host import busy_cpu_s, cpu_name, host_conditions
from headrace.bench.measure import Sample, run_case
from headrace.bench.run import median_run
from headrace.bench.setup import Settings, make_config
from headrace.engine.core import Engine
from headrace.engine.model import native_executor, open_model, vocabulary_of
from headrace.limits.calibrate import Host, calibrate
from headrace.limits.calibrations import load_calibration, save_calibration
from headrace.limits.estimate import Calibration
from headrace.limits.machine import MachineProbe
from headrace.limits.plan import ask, plan
from headrace.limits.rates import MachineRates, median_rates

MODELS = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
#: In no aim: calibrations were developed on it.
REFERENCE = "smollm2-135m"
AIM_MEDIAN, AIM_WORST, AIM_MEMORY = 0.20, 0.40, 0.05
REPETITIONS = 3
#: Cells of more prompt tokens than that run once.
LONG_TOKENS = 20_000
OTHERS_SHARE, TRIES = 0.1, 4
#: How long to wait for others to be quiet, and to look whether they are.
PATIENCE_S, LOOK_S = 60.0, 0.4
#: Servers that --memory fills: model, context, requests; and tokens that each request draws.
FILLED = (
    ("smollm2-135m", 512, 4),
    ("smollm2-135m", 2048, 16),
    ("gemma3-270m", 1024, 4),
    ("qwen2.5-coder-0.5b", 1024, 4),
    ("qwen2.5-coder-1.5b", 1024, 4),
)
OUTPUT = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition. others: share of the CPUs that went to other processes meanwhile. rates: the
    median of the probes before and after."""

    ttft_s: float
    tpot_s: float
    others: float
    rates: dict[str, Any]


@dataclass(slots=True)
class Cell:
    """One model at a batch and a context, and what was measured of it."""

    model: str
    batch: int
    context: int
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cell:
        runs = [Run(**run) for run in values["runs"]]
        return cls(values["model"], values["batch"], values["context"], runs)

    @property
    def quiet(self) -> list[Run]:
        """The runs that nobody disturbed; where there are none, the least disturbed one."""
        quiet = [run for run in self.runs if run.others <= OTHERS_SHARE]
        return quiet or sorted(self.runs, key=lambda run: run.others)[:1]

    @property
    def done(self) -> bool:
        """Whether it has its repetitions; one is enough where that takes long."""
        quiet = [run for run in self.runs if run.others <= OTHERS_SHARE]
        long = self.batch * self.context * (2 if "1.5b" in self.model else 1) > LONG_TOKENS
        return len(quiet) >= (1 if long else REPETITIONS)

    @property
    def seen(self) -> bool:
        """Whether one run was undisturbed."""
        return any(run.others <= OTHERS_SHARE for run in self.runs)

    @property
    def rates(self) -> MachineRates:
        return median_rates([MachineRates(**run.rates) for run in self.quiet])

    @property
    def key(self) -> tuple[str, int, int]:
        return self.model, self.batch, self.context

    @property
    def output(self) -> int:
        """Tokens of each sequence: enough that all generate together at the end, after the steps
        of 512 tokens that their prompts take."""
        return 32 + (self.batch * self.context // 512 if self.batch > 1 else 0)

    def cases(self) -> tuple[Case, ...]:
        """What `headrace bench run` runs for it."""
        if self.batch > 1:
            return (Case(Kind.BATCH, self.context, self.output, batch=self.batch),)
        prompt = Case(Kind.PREFILL, self.context, 0)
        return prompt, Case(Kind.DECODE, 0, self.output, depth=self.context)


# ---- measuring ----------------------------------------------------------------------------------


def measure(cells: Sequence[Cell], keep: Any) -> None:
    """Cells of one model, in turn until each has its repetitions. keep(): after every one."""
    model = open_model(cells[0].model, offline=True)
    settings = Settings()
    threads = len(os.sched_getaffinity(0))
    cases = [case for cell in cells for case in cell.cases()]
    config = make_config(model, cases, settings, threads)
    engine = Engine(native_executor(model.program, config), vocabulary_of(model), config)
    run_case(engine, Case(Kind.BATCH, 16, 8, batch=2)) if config.max_num_seqs > 1 else None
    run_case(engine, Case(Kind.PREFILL, 64, 0))
    probe = MachineProbe(threads)
    for _ in range(TRIES * REPETITIONS):
        for cell in sorted(cells, key=lambda cell: cell.seen):
            if not cell.done:
                _wait_for_quiet()
                cell.runs.append(_run(engine, cell, probe))
                print(_told(cell), file=sys.stderr, flush=True)
                keep()


def _told(cell: Cell) -> str:
    run = cell.runs[-1]
    return (
        f"{cell.model} ×{cell.batch} @{cell.context}: TTFT {1e3 * run.ttft_s:.1f} ms, TPOT "
        f"{1e3 * run.tpot_s:.2f} ms, others {run.others:.0%}"
    )


def _tpot(sample: Sample) -> float:
    if not sample.num_decode_steps:
        assert sample.tpot_s is not None
        return sample.tpot_s
    return sample.decode_s / sample.num_decode_steps


def _wait_for_quiet() -> None:
    """Until nobody else works, but not for ever."""
    for _ in range(int(PATIENCE_S / LOOK_S)):
        busy = busy_cpu_s()
        time.sleep(LOOK_S)
        if busy_cpu_s() - busy <= OTHERS_SHARE * LOOK_S * len(os.sched_getaffinity(0)):
            return


def _run(engine: Engine, cell: Cell, probe: MachineProbe) -> Run:
    """One repetition between two probes."""
    rates = [probe.rates()]
    wall, own, busy = time.perf_counter(), time.process_time(), busy_cpu_s()
    samples = [median_run(engine, case) for case in cell.cases()]
    own, wall = time.process_time() - own, time.perf_counter() - wall
    others = (busy_cpu_s() - busy - own) / (wall * len(os.sched_getaffinity(0)))
    rates.append(probe.rates())
    ttft_s = next(s.ttft_s for s in samples if s.ttft_s is not None)
    return Run(ttft_s, _tpot(samples[-1]), max(others, 0.0), asdict(median_rates(rates)))


# ---- comparing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A cell's times, predicted and measured. ratio: predicted ÷ measured."""

    cell: Cell
    what: str
    bound_s: float
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)


def compare(cells: Sequence[Cell], calibration: Calibration) -> Iterator[Line]:
    for cell in cells:
        bound, estimate = (_times(cell, cell.rates, c) for c in (None, calibration))
        measured = median(r.ttft_s for r in cell.quiet), median(r.tpot_s for r in cell.quiet)
        for i, what in enumerate(("TTFT", "TPOT")):
            yield Line(cell, what, bound[i], estimate[i], measured[i])


def _times(cell: Cell, rates: MachineRates, calibration: Calibration | None) -> tuple[float, float]:
    """TTFT and TPOT of the plan's row."""
    question = ask(
        cell.model,
        hardware="local",
        prompt=str(cell.context),
        output=str(cell.output),
        concurrency=str(cell.batch),
        rates=rates,
        calibration=calibration,
    )
    times = plan(question).rows[0].times
    assert times is not None
    assert times.ttft_s is not None
    return times.ttft_s, times.tpot_s


def summary(lines: Sequence[Line]) -> tuple[float, float]:
    """Median and worst error of the models that the aim is about."""
    errors = [line.error for line in lines if line.cell.model != REFERENCE]
    return (median(errors), max(errors)) if errors else (0.0, 0.0)


def table(lines: Sequence[Line]) -> list[str]:
    rows = [
        "| model | batch | context | | bound, ms | predicted, ms | measured, ms | runs "
        "| predicted ÷ measured |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for line in lines:
        cell = line.cell
        rows.append(
            f"| {cell.model} | {cell.batch} | {cell.context} | {line.what} "
            f"| {1e3 * line.bound_s:,.2f} | {1e3 * line.predicted_s:,.2f} "
            f"| {1e3 * line.measured_s:,.2f} | {len(cell.quiet)} | {line.ratio:.2f} |"
        )
    return rows


# ---- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filled:
    """A server filled to the plan's maximum. Bytes of anonymous memory, without an empty Python
    process: planned, and the peak that was measured."""

    model: str
    context: int
    requests: int
    planned: dict[str, int]
    measured: int

    @property
    def ratio(self) -> float:
        return self.planned["total"] / self.measured


def fill(name: str, context: int, requests: int) -> Filled:
    """Starts a server for so many requests of the whole context, sends them all at once."""
    question = ask(name, hardware="local", context=str(context), concurrency=str(requests))
    planned = plan(question).rows[0].memory
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "headrace", "serve", name, "--offline", "--port", str(port)),
            *("--max-model-len", str(context), "--max-num-seqs", str(requests)),
            *("--kv-cache-memory", str(planned.kv)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
            _wait(client, server)
            random = np.random.default_rng(0)
            prompts = random.integers(1000, 20_000, (requests, context - OUTPUT)).tolist()
            with ThreadPoolExecutor(requests) as threads:
                used = list(threads.map(lambda ids: _complete(client, name, ids), prompts))
            assert used == [context] * requests, used
        measured = _anonymous_bytes(server.pid)
    finally:
        server.terminate()
        server.wait()
    return Filled(name, context, requests, planned.to_dict(), measured - _empty_bytes())


def _wait(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    while True:
        assert server.poll() is None, "the server ended"
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)


def _complete(client: httpx.Client, name: str, ids: list[int]) -> int:
    """Positions that the request filled."""
    body = {"model": name, "prompt": ids, "max_tokens": OUTPUT, "temperature": 0}
    answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
    answer.raise_for_status()
    return int(answer.json()["usage"]["total_tokens"])


def _empty_bytes() -> int:
    """Anonymous memory of a Python process that has only started."""
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as empty:
        assert empty.stdout is not None
        empty.stdout.readline()
        found = _anonymous_bytes(empty.pid)
        empty.communicate(b"\n")
    return found


def _anonymous_bytes(pid: int) -> int:
    """Now; blocks and buffers are never given back, so after the last answer it is the peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell anonymous memory")


def memory_table(filled: Sequence[Filled]) -> list[str]:
    rows = [
        "| model | context | requests | weights | KV | activations | process | planned, MB "
        "| measured, MB | planned ÷ measured |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in filled:
        mb = {name: f"{size / 1e6:,.1f}" for name, size in one.planned.items()}
        rows.append(
            f"| {one.model} | {one.context} | {one.requests} | {mb['weights']} | {mb['kv']} "
            f"| {mb['activations']} | {mb['overhead']} | {mb['total']} "
            f"| {one.measured / 1e6:,.1f} | {one.ratio:.3f} |"
        )
    return rows


# ---- the page -----------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "plan-accuracy.md"
BEGIN, END = "<!-- written by tools/bench_plan.py --write -->", "<!-- end -->"


def write_page(lines: Sequence[Line], filled: Sequence[Filled], known: dict[str, Any]) -> None:
    """Replaces what stands between the page's marks."""
    middle, worst = summary(lines)
    where = known["conditions"]
    measured = {line.cell.key for line in lines}
    missing = [
        f"{model} at batch {batch} and context {context}"
        for model in MODELS
        for batch in (1, 16)
        for context in (128, 2048)
        if (model, batch, context) not in measured
    ]
    text = [
        BEGIN,
        f"{where['cpu']}, {where['cpus']} CPUs, Headrace {where['headrace']}, "
        f"{where['date'][:10]}.",
        "",
        "**Times.** Error is |predicted ÷ measured − 1|, over all models but "
        f"{REFERENCE}: median {middle:.1%} (aim {AIM_MEDIAN:.0%}), worst {worst:.1%} "
        f"(aim {AIM_WORST:.0%}).",
        "",
        *table(lines),
        "",
        f"Not measured: {', '.join(missing) or 'nothing'}.",
        "",
        "**Memory.** Worst "
        f"{max((abs(f.ratio - 1) for f in filled), default=0):.1%} (aim {AIM_MEMORY:.0%}).",
        "",
        *memory_table(filled),
        END,
    ]
    page = PAGE.read_text(encoding="utf-8")
    start, end = page.index(BEGIN), page.index(END) + len(END)
    PAGE.write_text(page[:start] + "\n".join(text) + page[end:], encoding="utf-8")


def main() -> int:
    options = _options()
    known: dict[str, Any] = {}
    if options.cells is not None and options.cells.is_file():
        known = json.loads(options.cells.read_text())
    cells = {c.key: c for c in map(Cell.from_dict, known.get("cells", []))}
    filled = [Filled(**values) for values in known.get("memory", [])]

    def keep() -> None:
        if options.cells is not None:
            known["conditions"] = host_conditions()
            known["cells"] = [asdict(c) for c in cells.values() if c.runs]
            known["memory"] = [asdict(f) for f in filled]
            options.cells.write_text(json.dumps(known, indent=1))

    models = options.models.split(",")
    if options.memory:
        for name, context, requests in FILLED:
            if name in models:
                filled = [f for f in filled if (f.model, f.context) != (name, context)]
                filled.append(fill(name, context, requests))
                keep()
        print("\n".join(memory_table(filled)))
        return int(any(abs(f.ratio - 1) > AIM_MEMORY for f in filled))
    calibration = _calibration(options.calibration)
    for name in [] if options.write else models:
        wanted = [
            Cell(name, int(batch), int(context))
            for context in options.contexts.split(",")
            for batch in options.batches.split(",")
        ]
        cells = {cell.key: cell for cell in wanted} | cells
        missing = [cells[cell.key] for cell in wanted if not cells[cell.key].done]
        if missing:
            measure(missing, keep)
    lines = list(compare(sorted(cells.values(), key=_order), calibration))
    print("\n".join(table(lines)))
    middle, worst = summary(lines)
    print(
        f"\nmedian error {middle:.1%} (aim {AIM_MEDIAN:.0%}), worst {worst:.1%} ({AIM_WORST:.0%})"
    )
    if options.write:
        write_page(lines, filled, known)
    return int(middle > AIM_MEDIAN or worst > AIM_WORST)


def _order(cell: Cell) -> tuple[int, int, int]:
    return MODELS.index(cell.model), cell.batch, cell.context


def _calibration(path: Path | None) -> Calibration:
    """That of the file; measured now where there is none."""
    if path is not None and path.is_file():
        return load_calibration(path)
    found = calibrate(
        Host(cpu_name(), busy_cpu_s), notice=lambda text, _: print(text, file=sys.stderr)
    )
    save_calibration(found, path)
    return found


def _options() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--contexts", default="128,2048")
    parser.add_argument("--calibration", type=Path, help="a file; measured now where there is none")
    parser.add_argument("--cells", type=Path, help="a file that keeps what was measured")
    parser.add_argument("--memory", action="store_true", help="memory instead of times")
    parser.add_argument("--write", action="store_true", help="measure nothing, write the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
