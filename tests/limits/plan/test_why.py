"""--why: the items that part the program from the closed forms add up, and are what they say."""

from __future__ import annotations

import re

import pytest
from asking import ROUND, planned

from headrace.limits.plan import ask
from headrace.limits.plan.differences import byte_differences
from headrace.limits.plan.hardware import parse_hardware
from headrace.limits.plan.table import Planner
from headrace.limits.plan.times import chunks_of, decode_contexts, decode_step

[HARDWARE, BLANK] = parse_hardware(ROUND, "round").values()


def differences(model: str, quant: str | None = None) -> tuple[dict[str, float], float, float]:
    """Item → bytes; bytes of the closed form; bytes of the program."""
    planner = Planner(ask(model, hardware=(HARDWARE,), quant=quant, context="1k"))
    load = planner.load(HARDWARE, 5)
    context = decode_contexts(load)[1]
    total = planner.costs(HARDWARE).step(chunks_of(decode_step(load))).total
    items = byte_differences(planner, total, context, 5)
    sizes = {what: size for what, (_, size) in items.items()}
    return sizes, planner.paper.step_bytes(context, 5), total.num_bytes


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma3-1b", "qwen2.5-7b", "gpt2"])
@pytest.mark.parametrize("quant", [None, "q4_k"])
def test_items_add_up(model: str, quant: str | None) -> None:
    items, closed, program = differences(model, quant)
    assert closed + sum(items.values()) == pytest.approx(program, rel=1e-12)


def test_items_of_a_llama_by_hand() -> None:
    """128,256 rows of 4,096 two-byte numbers; 65 norms of as many four-byte ones."""
    items, _, _ = differences("llama-3.1-8b")
    assert items["embedding table"] == -128_256 * 4096 * 2
    assert items["embedding rows"] == 5 * 4096 * 2
    assert items["norms and biases"] == 65 * 4096 * 4
    assert items["KV"] == 0
    assert items["other shapes"] == pytest.approx(0, abs=1)


def test_windows_read_less() -> None:
    """gemma3-1b: 26 layers with one KV head of 256, of which 22 see 512 positions: 511 old ones and
    the new one of 1,024."""
    items, _, _ = differences("gemma3-1b")
    assert items["KV"] == -5 * 22 * 512 * 2 * 256 * 2


def test_every_line_can_be_followed() -> None:
    """Where a line's numbers are sums or products of whole numbers, they give its result."""
    sections = planned("llama-2-13b", "--hardware", "h100", "--ctx", "1k", "--why",
                       "--formula", "paper")["why"]  # fmt: skip
    checked = 0
    for line in (line for section in sections for line in section["lines"]):
        numbers = line["numbers"].replace(",", "").replace("·", "*").replace("×", "*")
        numbers = numbers.replace("−", "-").replace("÷", "/")
        result = re.fullmatch(r"([+−]?)([\d,.]+)( bytes.*)?", line["result"])
        if result is None or re.search(r"[a-z]", numbers) or "⁶" in numbers or not numbers:
            continue
        sign = -1 if result[1] == "−" else 1
        value = sign * float(result[2].replace(",", ""))
        assert eval(numbers) == pytest.approx(value, rel=6e-3), line
        checked += 1
    assert checked >= 8
