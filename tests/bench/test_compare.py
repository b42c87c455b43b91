"""The comparison: its tests, its report, and engines that fail."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.compare import Comparison, Outcome, Plan, compare, load_of, make_tests
from headrace.bench.compare_report import render, to_dict
from headrace.bench.peers.catalog import HEADRACE, PEERS, PeerEntry
from headrace.bench.peers.process import last_words
from headrace.cli.main import run
from headrace.limits.rates import MachineRates
from headrace.limits.workloads import RunLimit

PEER = PEERS["llama-cpp-python"]


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_a_plan_becomes_tests_of_the_right_lengths() -> None:
    plan = Plan(prompt=700, generate=8, depth=5, sequences=(1, 4), batch_prompt=16)
    pp, tg, batch = make_tests(plan, encode)
    assert (pp.name, len(pp.prompts[0]), pp.generate, pp.tokens) == ("pp700", 700, 0, 700)
    assert (tg.name, len(tg.prompts[0]), tg.generate, tg.tokens) == ("tg8@5", 5, 8, 8)
    assert (batch.name, batch.generate, batch.tokens) == ("4×(16+8)", 8, 4 * 24)
    assert [len(ids) for ids in batch.prompts] == [16] * 4
    assert len({ids[:4] for ids in batch.prompts}) == 4
    load = load_of(Path("m"), (pp, tg, batch), 2)
    assert (load.max_context, load.num_sequences, load.batch_context) == (701, 4, 25)


def report() -> dict[str, Any]:
    [test] = make_tests(Plan(prompt=100, generate=0), encode)
    ours = Outcome(HEADRACE, {"version": "1"}, {"pp100": [400.0, 300.0]}, {"pp100": [0.0, 0.0]})
    ours.tokens = {"pp100": [7]}
    theirs = Outcome(PEER, {"version": "2"}, {"pp100": [100.0, 50.0]}, {"pp100": [0.0, 0.3]})
    theirs.tokens = {"pp100": [8]}
    broken = Outcome(PEERS["transformers"], reason="It cannot.")
    rates = MachineRates(50e9, 2e12, 1e12, 5e11, 2, "avx512", 1 << 25)
    result = Comparison((test,), [ours, theirs, broken], {"pp100": [rates]})
    result.limits = {"pp100": RunLimit(100, 0.2, 0.25, 0.0)}
    conditions = {
        "model": "m", "weights": "Q4_0", "threads": 2, "cpu": "A CPU", "repetitions": 2,
        "checked": ["whole = chunked"], "missing": [{"title": "Other", "install": "pip it"}],
    }  # fmt: skip
    return to_dict(result, conditions)


def test_a_report_holds_rates_ratio_and_share_of_the_bound() -> None:
    data = report()
    [test] = data["tests"]
    assert (test["bound_tok_per_s"], test["serial_tok_per_s"]) == (500.0, 400.0)
    ours, theirs = test["engines"]
    assert ours["tok_per_s"] == {"median": 350.0, "min": 300.0, "max": 400.0}
    assert (ours["of_bound"], ours["of_serial"]) == (0.7, 0.875)
    assert theirs["ratio"] == {"median": 5.0, "min": 4.0, "max": 6.0}
    assert theirs["same_tokens"] == [0, 1]
    assert json.loads(json.dumps(data)) == data


def test_a_table_says_who_could_not_run_who_is_missing_and_who_disturbed() -> None:
    table = render(report(), "table")
    assert "transformers: not measured: It cannot." in table
    assert "Other: not installed; install it with: pip it" in table
    assert "other processes took up to 30% of the CPUs" in table
    assert "5.00×" in table


def test_every_output_holds_the_same_figures() -> None:
    data = report()
    markdown = render(data, "md").splitlines()
    rows = list(csv.reader(io.StringIO(render(data, "csv"))))
    assert markdown[0].count("|") == markdown[1].count("|") == len(rows[0]) + 1
    assert rows[2][:3] == ["pp100", "llama.cpp", "75.0"]
    assert markdown[3].split(" | ")[2] == "75.0"
    assert json.loads(render(data, "json")) == data


def test_last_words_are_the_assertion() -> None:
    text = "loading\nfile.h:1157: GGML_ASSERT(S > 0) failed\n#1 ggml_abort () from lib.so\ndone\n"
    assert last_words(text) == "file.h:1157: GGML_ASSERT(S > 0) failed"
    assert last_words("loading\nValueError: no\nbye\n") == "ValueError: no"
    assert last_words("bye\n\n") == "bye"
    assert last_words("") == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--with", "vllm"], "--with names the unknown engine 'vllm'. Known: llama-cpp-python, "),
        (["-npl", "1,x"], "--num-parallel must be numbers 1 … 1024 with commas, not '1,x'."),
        (["-npl", "0"], "--num-parallel must be numbers 1 … 1024"),
        (["-r", "0"], "--repetitions must be 1 … 1000000, not 0."),
        (["-o", "yaml"], "--output must be one of table, md, csv, json, not 'yaml'."),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "compare", "smollm2-135m", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_without_any_engine_the_way_to_install_one_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = PeerEntry("no-such-package", "No", "no_such_module", "none:No", "pip install it")
    monkeypatch.setitem(PEERS, "no-such-package", entry)
    assert run(["bench", "compare", "smollm2-135m", "--with", "no-such-package"]) == 2
    assert "None of these engines is installed; install one with:\n  pip install it" in (
        capsys.readouterr().err
    )


def model_path() -> Path:
    from headrace.formats.sources import resolve

    return resolve("smollm2-135m")


@pytest.mark.models
def test_an_engine_that_cannot_start_drops_out_and_the_run_goes_on() -> None:
    broken = PeerEntry("no-such-engine", "Broken", "none", "none:None", "")
    tests = make_tests(Plan(prompt=16, generate=2, sequences=(1, 2), batch_prompt=4), encode)
    calls: list[str] = []
    result = compare(
        model_path(), tests, [broken], num_threads=2, repetitions=2,
        between=lambda test: calls.append(test.name),
    )  # fmt: skip
    ours, theirs = result.outcomes
    assert calls == [test.name for test in tests for _ in range(2)] * 2
    assert ours.reason is None
    assert {name: len(rates) for name, rates in ours.rates.items()} == {t.name: 2 for t in tests}
    assert all(rate > 0 for rates in ours.rates.values() for rate in rates)
    assert len(ours.tokens["tg2"]) == 3
    assert len(ours.tokens["2×(4+2)"]) == 2
    assert theirs.rates == {}
    assert theirs.reason is not None
    assert "Broken ended with 1" in theirs.reason


@pytest.mark.large
def test_an_engine_that_dies_in_the_middle_keeps_what_it_measured() -> None:
    def kill_llama_cpp(_: object) -> None:
        rounds.append(1)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if len(rounds) == 2 and parent == os.getpid() and PEER.name.encode() in words:
                os.kill(int(process.name), signal.SIGKILL)

    rounds: list[int] = []
    tests = make_tests(Plan(prompt=16, generate=0), encode)
    result = compare(
        model_path(), tests, [PEER], num_threads=2, repetitions=3, between=kill_llama_cpp
    )
    ours, theirs = result.outcomes
    assert [len(o.rates["pp16"]) for o in (ours, theirs)] == [3, 1]
    assert theirs.reason is not None
    assert theirs.reason.startswith("llama.cpp was ended by SIGKILL")
