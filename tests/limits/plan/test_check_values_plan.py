"""Every published check value, out of `headrace plan llama-2-13b --hardware h100 --ctx 1024
--concurrency 1,64,256`: Llama-2-13B on one H100, with 40 and with 8 KV heads, at 2 $ an hour."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from asking import plan_text, planned

ASKED = ("llama-2-13b", "--hardware", "h100", "--ctx", "1024", "--concurrency", "1,64,256",
         "--price", "2")  # fmt: skip
GQA = ("--set", "num_kv_heads=8")
PAPER = ("--formula", "paper")


@cache
def rows(*options: str) -> dict[int, dict[str, Any]]:
    return {row["concurrency"]: row for row in planned(*ASKED, *options)["rows"]}


@pytest.mark.parametrize(
    ("options", "batch", "gb", "fits", "step_ms", "tok_per_s"),
    [
        ((), 1, 26.9, True, 8.0, 125),
        ((), 64, 79.7, True, 23.8, 2690),
        ((), 256, 240.8, False, 71.9, 3560),
        (GQA, 64, 33.4, True, 10.0, None),
        (GQA, 256, 65.6, True, 19.6, 13_070),
    ],
)
def test_memory_and_steps(
    options: tuple[str, ...],
    batch: int,
    gb: float,
    fits: bool,
    step_ms: float,
    tok_per_s: float | None,
) -> None:
    row = rows(*PAPER, *options)[batch]
    assert row["memory_bytes"]["total"] / 1e9 == pytest.approx(gb, abs=0.06)
    assert row["fits"] is fits
    assert row["tpot_s"] * 1e3 == pytest.approx(step_ms, abs=0.06)
    heavy = "weights" if batch == 1 or (options and batch == 64) else "KV"
    assert row["decode_bound_by"] == heavy
    if tok_per_s is not None:
        assert row["total_tok_per_s"] == pytest.approx(tok_per_s, rel=5e-3)


def test_cache_of_a_sequence() -> None:
    for options, gb in ((PAPER, 0.839), ((*PAPER, *GQA), 0.168)):
        row = rows(*options)[1]
        assert row["memory_bytes"]["kv"] / 1e9 == pytest.approx(gb, abs=6e-4)
    assert rows(*PAPER)[1]["memory_bytes"]["weights"] / 1e9 == pytest.approx(26.0, abs=0.06)


def test_costs() -> None:
    mha = rows(*PAPER)
    assert mha[1]["usd_per_mtok"] == pytest.approx(4.46, abs=0.006)
    assert mha[64]["usd_per_mtok"] == pytest.approx(0.21, abs=0.005)
    gain = rows(*PAPER, *GQA)[256]["total_tok_per_s"] / mha[64]["total_tok_per_s"]
    assert gain == pytest.approx(4.9, abs=0.06)


def test_formulas_show_their_numbers() -> None:
    """Parameters, bytes per token and the critical number of cached tokens stand in --why."""

    def results(*options: str) -> dict[str, str]:
        sections = planned(*ASKED, "--why", *options)["why"]
        return {line["what"]: line["result"] for s in sections for line in s["lines"]}

    mha, gqa = results(*PAPER), results(*PAPER, *GQA)
    assert int(mha["parameters"].replace(",", "")) / 1e9 == pytest.approx(13.02, abs=5e-3)
    assert int(gqa["parameters"].replace(",", "")) / 1e9 == pytest.approx(11.3, abs=0.15)
    assert mha["KV of a token"] == "819,200 bytes"
    weigh = "cached tokens that weigh as much as the parameters"
    assert int(mha[weigh].replace(",", "")) == pytest.approx(31_800, rel=1e-3)


def test_the_h100_turns_compute_bound_at_295_tokens() -> None:
    [h100] = planned(*ASKED)["hardware"]
    assert h100["bf16_ops_per_s"] / h100["read_bytes_per_s"] == pytest.approx(295, abs=0.5)


@pytest.mark.parametrize("options", [(), GQA])
def test_the_program_agrees_and_says_what_differs(options: tuple[str, ...]) -> None:
    paper, program = rows(*PAPER, *options), rows(*options)
    for batch in (1, 64, 256):
        for name in ("tpot_s", "total_tok_per_s", "usd_per_mtok"):
            assert program[batch][name] == pytest.approx(paper[batch][name], rel=0.02)
        for part in ("weights", "kv", "total"):
            exact, closed = (r[batch]["memory_bytes"][part] for r in (program, paper))
            assert exact == pytest.approx(closed, rel=0.02)
    text = plan_text(*ASKED, *options, "--why")
    assert "embedding table = not read whole" in text
    assert "−327,680,000 bytes" in text  # 32,000 rows of 5,120 two-byte numbers
    assert "norms and biases = read too" in text


@pytest.mark.parametrize(("kv_heads", "gib"), [(32, 2.0), (8, 0.5)])
def test_cache_of_a_7b_shape(kv_heads: int, gib: float) -> None:
    """L = 32, D = 128, 16 bit, S = 4096: 2 GiB with 32 KV heads, 512 MiB with 8; four times the
    requests, four times the cache; narrow weights change nothing of it."""
    asked = ("llama-2-7b", "--hardware", "h100", "--ctx", "4k", "--concurrency", "1,4",
             "--set", f"num_kv_heads={kv_heads}")  # fmt: skip
    for options in (("--quant", "q4_k"), PAPER):
        one, four = planned(*asked, *options)["rows"]
        assert one["memory_bytes"]["kv"] == gib * 2**30
        assert four["memory_bytes"]["kv"] == 4 * one["memory_bytes"]["kv"]
