"""Rows and reports: medians, limits and percentages by hand; every format read back."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import Sample
from headrace.bench.report import OUTPUTS, render, to_dict
from headrace.bench.rows import rows_of
from headrace.bench.run import BenchResult, ThreadResult
from headrace.bench.tables import aligned, figures
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates, best_rates, median_rates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.verify.ladder import Report
from headrace.verify.result import RungResult
from small_program import small_program

COSTS = CostModel(small_program())


def rates(read: float = 1e9, int8: float = 8e9) -> MachineRates:
    return MachineRates(read, int8, 4e9, 2e9, 2, "avx2", 1 << 20)


def limit_s(*steps: list[Chunk]) -> float:
    return sum(bound(COSTS.step(chunks), rates()).bound_s for chunks in steps)


def test_a_prompt_row_by_hand() -> None:
    case = Case(Kind.PREFILL, 50, 0, depth=20)
    samples = [Sample(s, 50, ttft_s=s) for s in (0.5, 0.1, 0.2, 0.25)]
    [row] = rows_of(case, samples, COSTS, rates())
    assert row.values == (100.0, 500.0, 250.0, 200.0)
    values = row.to_dict()
    assert values["test"] == "pp50"
    assert (values["depth"], values["batch"], values["num_prompt"]) == (20, 1, 50)
    assert values["tok_per_s"] == {"median": 225.0, "min": 100.0, "max": 500.0}
    assert values["ttft_ms"] == {"median": 225.0, "min": 100.0, "max": 500.0}
    assert "tpot_ms" not in values
    best = 50 / limit_s([Chunk(50, 70)])
    assert values["bound_tok_per_s"] == pytest.approx(best)
    assert values["of_bound"] == pytest.approx(225.0 / best)
    assert values["of_serial"] == pytest.approx(225.0 / values["serial_tok_per_s"])
    assert values["serial_tok_per_s"] <= values["bound_tok_per_s"]


def test_a_generation_row_by_hand() -> None:
    samples = [Sample(0.3, 3, tpot_s=0.1)]
    [row] = rows_of(Case(Kind.DECODE, 0, 3), samples, COSTS, rates())
    # A prompt of one token was computed before: the steps see 2, 3 and 4 positions.
    best = 3 / limit_s([Chunk(1, 2)], [Chunk(1, 3)], [Chunk(1, 4)])
    assert row.limit.tok_per_s == pytest.approx(best)
    assert row.tok_per_s.median == pytest.approx(10.0)
    assert row.tpot_ms is not None
    assert row.tpot_ms.median == pytest.approx(100.0)
    assert row.limited_by == "memory"


def test_a_batch_has_a_row_for_all_and_two_for_its_parts() -> None:
    case = Case(Kind.BATCH, 8, 3, batch=4)
    sample = Sample(2.0, 44, 0.5, 0.25, prefill_s=1.0, decode_s=0.5, num_decode_steps=2,
                    decode_start=8)  # fmt: skip
    whole, prompts, steps = rows_of(case, [sample], COSTS, rates())
    assert [whole.test, prompts.test, steps.test] == ["pp8+tg3", "pp8", "tg3"]
    # The prompts' logits give the first token, so two more steps make three.
    every = [Chunk(8, 8)] * 4, [Chunk(1, 9)] * 4, [Chunk(1, 10)] * 4
    assert whole.values == (22.0,)
    assert whole.limit.tok_per_s == pytest.approx(44 / limit_s(*every))
    assert prompts.values == (32.0,)
    assert prompts.limit.tok_per_s == pytest.approx(32 / limit_s(every[0]))
    assert steps.values == (16.0,)
    assert steps.limit.tok_per_s == pytest.approx(8 / limit_s(*every[1:]))


def test_a_batch_without_a_step_of_all_sequences_has_no_such_row() -> None:
    sample = Sample(2.0, 36, 0.5, None, prefill_s=1.0)
    rows = rows_of(Case(Kind.BATCH, 8, 1, batch=4), [sample], COSTS, rates())
    assert [row.test for row in rows] == ["pp8+tg1", "pp8"]


def test_rates_are_medians_field_by_field() -> None:
    middle = median_rates([rates(3e9, 1e9), rates(1e9, 3e9), rates(2e9, 2e9)])
    assert (middle.read_bytes_per_s, middle.int8_ops_per_s) == (2e9, 2e9)
    assert median_rates([rates(1e9), rates(2e9)]).read_bytes_per_s == 1.5e9
    assert best_rates([rates(3e9, 1e9), rates(1e9, 3e9)]) == rates(3e9, 3e9)


# ---- formats ------------------------------------------------------------------------------------


def result() -> BenchResult:
    rung = RungResult.judge("uncached = cached", 0.0, 3)
    results = []
    for threads in (1, 2):
        one = ThreadResult(threads, "avx2", Report((rung,)), [rates(1e9), rates(3e9)])
        prompt, batch = Case(Kind.PREFILL, 50, 0), Case(Kind.BATCH, 8, 3, batch=4)
        one.rows += rows_of(prompt, [Sample(0.5 / threads, 50, 0.5)], COSTS, one.rates)
        one.rows += rows_of(batch, [Sample(2.0, 44, 0.5, 0.25, 1.0, 0.5, 2, 8)], COSTS, one.rates)
        results.append(one)
    conditions: dict[str, Any] = {
        "model": "small", "weights": ["F32", "Q8_0"], "activations": ["f32"], "kv_format": "bf16",
        "model_bytes": 5_000_000, "cpu": "a | CPU", "cpus": 2, "isa": "avx2", "headrace": "0.1.0",
        "git_commit": None, "numerics_id": "n", "date": "today", "load_average_1min": 0.5,
        "load_average_after": 1.5, "repetitions": 1, "path": "engine", "sampling": "greedy",
        "prompts": "random", "max_num_batched_tokens": 512,
    }  # fmt: skip
    return BenchResult(conditions, results)


def test_json_has_what_the_interface_promises() -> None:
    data = json.loads(render(result(), "json"))
    assert data == to_dict(result())
    assert set(data) == {"conditions", "checks", "probe", "probes", "rows"}
    assert data["conditions"]["threads"] == [1, 2]
    assert data["probe"]["read_gb_per_s"] == 2.0
    assert data["probe"]["int8_gop_per_s"] == 8.0
    assert data["probe"]["spread"]["read_gb_per_s"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert data["checks"][1]["rungs"][0]["name"] == "uncached = cached"
    assert [(row["test"], row["batch"], row["threads"]) for row in data["rows"]] == [
        (test, batch, threads)
        for threads in (1, 2)
        for test, batch in (("pp50", 1), ("pp8+tg3", 4), ("pp8", 4), ("tg3", 4))
    ]
    for row in data["rows"]:
        assert set(row["tok_per_s"]) == {"median", "min", "max"}
        assert row["of_bound"] == row["tok_per_s"]["median"] / row["bound_tok_per_s"]


def test_csv_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(render(result(), "csv"))))
    data = to_dict(result())["rows"]
    assert len(rows) == len(data)
    for row, expected in zip(rows, data, strict=True):
        assert row["test"] == expected["test"]
        assert float(row["tok_per_s_median"]) == expected["tok_per_s"]["median"]
        assert float(row["of_bound"]) == expected["of_bound"]
        assert float(row["read_gb_per_s"]) == 2.0
        assert row["weights"] == "F32 Q8_0"
        assert None not in row  # no more cells than columns


def test_markdown_is_one_table_with_its_conditions() -> None:
    lines = render(result(), "md").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + 8
    assert lines[0].startswith("| test | threads | batch |")
    assert any("probe with 2 threads" in line for line in lines)


def test_the_table_names_conditions_and_percentages() -> None:
    text = render(result(), "table")
    assert "model load and warm-up not included" in text
    assert "read 2.0 GB/s (1.0 … 3.0)" in text
    assert "load 0.5 before, 1.5 after" in text
    head = next(line for line in text.splitlines() if line.startswith("test"))
    for column in ("tok/s", "bound", "of bound", "serial", "TTFT ms", "TPOT ms"):
        assert column in head
    assert "  pp8  " in text  # parts are indented


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_format_ends_without_a_newline(output: str) -> None:
    text = render(result(), output)
    assert text
    assert not text.endswith("\n")


def test_figures_and_columns() -> None:
    assert [figures(v) for v in (4711.4, 61.25, 3.14159)] == ["4711", "61.2", "3.14"]
    assert aligned(("a", "b"), [("long", "1"), ("x", "22")]) == ["a      b", "long   1", "x     22"]
