"""Writes the example in docs/limits.md: what steps of a real model cost, and their limit.

    python tools/write_limits_docs.py [--check]

The rates are round figures of a two-core AVX-512 machine, so that the page says the same wherever
it is written. --check: changes nothing, exits 1 when the page is not up to date (a test runs it).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.engine.model import open_model
from headrace.limits.bound import bound, bound_of
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, OpCost, kind_of

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"
BEGIN, END = "<!-- example: written by tools/write_limits_docs.py -->", "<!-- end of example -->"
MODEL = "smollm2-135m"
RATES = MachineRates(
    read_bytes_per_s=75e9,
    int8_ops_per_s=2100e9,
    bf16_ops_per_s=1000e9,
    f32_ops_per_s=500e9,
    num_threads=2,
    isa="avx512",
    llc_bytes=32 << 20,
)
STEPS: Sequence[tuple[str, list[Chunk]]] = (
    ("Prompt of 512 tokens", [Chunk(512, 512)]),
    ("One token after 512", [Chunk(1, 513)]),
    ("One token for each of 32 sequences after 128", [Chunk(1, 129)] * 32),
)


def example() -> str:
    """The block between the markers."""
    program = open_model(MODEL).program
    model = CostModel(program, cache_bytes=RATES.llc_bytes)
    lines = [
        f"`{MODEL}`: {model.num_parameters:,} parameters, {model.weight_bytes:,} bytes of weights, "
        f"{model.kv_bytes_per_position:,} bytes of KV per position (bf16). Rates: "
        f"{RATES.read_bytes_per_s / 1e9:g} GB/s; int8 {RATES.int8_ops_per_s / 1e9:g}, bf16 "
        f"{RATES.bf16_ops_per_s / 1e9:g}, f32 {RATES.f32_ops_per_s / 1e9:g} Gop/s; cache "
        f"{RATES.llc_bytes >> 20} MiB.",
    ]
    for title, chunks in STEPS:
        lines += ["", f"**{title}**", "", *_table(model, chunks)]
    return "\n".join(lines)


def _table(model: CostModel, chunks: list[Chunk]) -> list[str]:
    cost = model.step(chunks)
    groups: dict[str, list[OpCost]] = {}
    for c in cost.ops:
        groups.setdefault(" ".join((kind_of(c.op), c.format or "")).strip(), []).append(c)
    lines = [
        "| op | count | Mop | weights, MB | KV read, MB | KV written, MB | at least, ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, costs in groups.items():
        lines.append(_row(name, costs, bound_of(costs, RATES).serial_s))
    limit = bound(cost, RATES)
    lines.append(_row("**all**", list(cost.ops), limit.serial_s))
    tokens = sum(c.num_new for c in chunks)
    return [
        *lines,
        "",
        f"Memory {limit.memory_s * 1e3:.3f} ms, arithmetic {limit.compute_s * 1e3:.3f} ms: bound "
        f"{limit.bound_s * 1e3:.3f} ms ({tokens / limit.bound_s:,.0f} tok/s, limited by "
        f"{limit.limited_by}), serial sum {limit.serial_s * 1e3:.3f} ms "
        f"({tokens / limit.serial_s:,.0f} tok/s).",
    ]


def _row(name: str, costs: list[OpCost], seconds: float) -> str:
    sums = (
        sum(c.operations for c in costs),
        sum(c.weight_bytes for c in costs),
        sum(c.kv_read_bytes for c in costs),
        sum(c.kv_write_bytes for c in costs),
    )
    shown = (f"{n / 1e6:,.2f}" if n else "" for n in sums)
    return f"| {' | '.join((name, str(len(costs)), *shown, f'{seconds * 1e3:.3f}'))} |"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    inside = f"{BEGIN}\n{example()}\n{END}"
    written = re.sub(f"{BEGIN}.*{END}", lambda _: inside, page, flags=re.DOTALL)
    if "--check" in sys.argv[1:]:
        if written != page:
            print(f"{PAGE} is out of date; run python tools/write_limits_docs.py")
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
