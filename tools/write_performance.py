"""Measures what docs/performance.md states, and writes that page and the table of README.md. No
figure in them is typed.

    python tools/write_performance.py                    every part, then the page (about 15 min)
    python tools/write_performance.py speed:gemma3-270m steps        only these parts
    python tools/write_performance.py --append batch:qwen2.5-coder-1.5b   more repetitions of a part
    python tools/write_performance.py --page             page and table from docs/performance.json
    python tools/write_performance.py --check            … and exit status 1 when an aim is missed

Every part is a command of its own on a quiet machine, at most 100 s, and its figures replace those
of the same part in docs/performance.json:

    speed:MODEL   prompt 512 and 64 tokens of generation, next to other engines, interleaved
    batch:MODEL   32 sequences, 128 tokens in and 64 out, next to llama.cpp
    others:MODEL  all of these next to engines that there is no aim against
    ops:MODEL     where the time of a prompt's step and of a generation step goes
    long          prompt 4096, and generation at context 4096
    load:MODEL    opening and packing, in a fresh process
    steps         Python time per step
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from performance_page import MODELS, aims, page
from readme_table import in_readme

from headrace.limits.machine import probe

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "performance.json"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
LONG_MODEL = "smollm2-135m"

Report = dict[str, Any]

_LOAD = """
import json, sys, time
from headrace.engine.model import open_model
from headrace.ops.native import NativeModel
begin = time.perf_counter()
opened = open_model(sys.argv[1], offline=True)
middle = time.perf_counter()
NativeModel(opened.program)
print(json.dumps({"open_s": middle - begin, "pack_s": time.perf_counter() - middle}))
"""


def run(*command: str) -> Report:
    """A child Python's JSON from its standard output."""
    child = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, cwd=ROOT)
    report: Report = json.loads(child.stdout)
    return report


def headrace(*arguments: str) -> Report:
    return run("-m", "headrace.cli.main", *arguments, "-o", "json", "--offline")


def speed(model: str) -> Report:
    repetitions = "2" if model.endswith("1.5b") else "3"
    return headrace(
        "bench", "compare", model, "--with", "llama-cpp-python,ik-llama-cpp-python",
        "-p", "512", "-n", "64", "-npl", "1", "-r", repetitions,
    )  # fmt: skip


def batch(model: str) -> Report:
    repetitions = "1" if model.endswith("1.5b") else "2"
    return headrace(
        "bench", "compare", model, "--with", "llama-cpp-python",
        "-n", "64", "-npp", "128", "-npl", "32", "-r", repetitions,
    )  # fmt: skip


def others(model: str) -> Report:
    return headrace(
        "bench", "compare", model, "--with", "openvino-genai,transformers",
        "-p", "512", "-n", "64", "-npp", "128", "-npl", "1,32", "-r", "1",
    )  # fmt: skip


def ops(model: str) -> Report:
    return headrace("bench", "run", model, "-p", "512", "-n", "64", "-r", "1", "--ops")


def long(_: str) -> Report:
    prompt = headrace("bench", "run", LONG_MODEL, "-p", "4096", "-n", "0", "-r", "3", "--ops")
    depth = headrace(
        "bench", "run", LONG_MODEL, "-p", "0", "-n", "64", "-d", "4096", "-r", "3", "--ops"
    )
    return {"prompt": prompt, "depth": depth}


def load(model: str) -> Report:
    """The medians of three fresh processes with a warm file cache."""
    runs = [run("-c", _LOAD, model) for _ in range(4)][1:]
    return {name: statistics.median(r[name] for r in runs) for name in runs[0]}


def steps(_: str) -> Report:
    return run("tools/bench_steps.py", "--batch", "1,32", "--kinds", "greedy,seeded", "--json")


PARTS: dict[str, Callable[[str], Report]] = {
    **{f"speed:{m}": speed for m in MODELS},
    **{f"batch:{m}": batch for m in MODELS},
    **{f"load:{m}": load for m in MODELS},
    **{f"ops:{m}": ops for m in MODELS},
    "others:smollm2-135m": others,
    "long": long,
    "steps": steps,
}


def appended(old: Report, new: Report) -> Report:
    """A comparison with the repetitions of an older one of the same tests before its own; the
    figures that depend on them are left to the page."""
    before = {
        (test["test"], figures["engine"]): figures
        for test in old["tests"]
        for figures in test["engines"]
    }
    for test in new["tests"]:
        for figures in test["engines"]:
            earlier = before.get((test["test"], figures["engine"]), {})
            for name in ("rates", "others_cpu_share"):
                figures[name] = earlier.get(name, []) + figures.get(name, [])
    new["conditions"]["repetitions"] += old["conditions"]["repetitions"]
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--append", action="store_true", help="keep earlier repetitions")
    parser.add_argument(
        "--min-read-gb-per-s", type=float, default=0.0, metavar="X",
        help="exit status 3 at once when the machine reads slower just now",
    )  # fmt: skip
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="measure nothing, look at the aims")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(PARTS)}")
    data: Report = json.loads(options.data.read_text()) if options.data.exists() else {}
    if not (options.page or options.check):
        if options.min_read_gb_per_s and probe().read_bytes_per_s < options.min_read_gb_per_s * 1e9:
            sys.exit(3)
        for part in options.parts or PARTS:
            print(part, file=sys.stderr, flush=True)
            report = PARTS[part](part.partition(":")[2])
            if options.append and part in data and "tests" in report:
                report = appended(data[part], report)
            data[part] = report
            data = {name: data[name] for name in PARTS if name in data}
            text = json.dumps(data, indent=1, ensure_ascii=False)
            options.data.write_text(text + "\n")
    options.output.write_text(page(data))
    if options.output == PAGE:
        README.write_text(in_readme(README.read_text(), data))
    if options.check:
        missed = [aim for aim in aims(data) if aim.missed]
        for aim in missed:
            print(f"{aim.what}, {aim.model}: {aim.shown}, aim {aim.aim}", file=sys.stderr)
        sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
