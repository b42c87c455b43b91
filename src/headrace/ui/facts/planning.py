"""What the Plan page asks of the planner, and its answer as rows and texts. Takes a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.limits.plan import BudgetTable, Hardware, Question, ask, plan
from headrace.limits.plan.advice import Stage
from headrace.limits.plan.hardware import find_hardware, known_hardware
from headrace.limits.plan.local import local_memory_bytes
from headrace.limits.plan.report import (
    Column,
    facts,
    hardware_facts,
    memory_columns,
    memory_legend,
    time_columns,
    time_legend,
)
from headrace.limits.plan.resolve import known_names
from headrace.limits.plan.why import why
from headrace.ui.facts import charts

#: The machine of the server that the dashboard belongs to.
SERVER = "this-server"
AS_IT_IS = "as it is"
QUANTS = (AS_IT_IS, "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "fp8", "int8", "int4", "mxfp4", "nvfp4")
KV_DTYPES = ("bf16", "f16", "f32", "fp8")
#: What sliders step through: halves of octaves. 0 stands for "not said".
LENGTHS = tuple(n for k in range(7, 18) for n in (1 << k, 3 << (k - 1)))[:-1]
PROMPTS = (0, 16, 32, 64, *LENGTHS)
CONCURRENCIES = tuple(
    n for n in sorted({1 << k for k in range(11)} | {3 << k for k in range(9)}) if n <= 1024
)
#: Plans that are kept.
MAX_ANSWERS = 64
_PARTS = ("weights", "kv", "activations", "overhead")
_PART_NAMES = ("weights", "KV", "activations", "other")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the controls say. prompt, output: 0 = not said. price: dollars an hour. ttft_ms,
    tpot_ms: targets."""

    model: str = "llama-3.1-8b"
    hardware: tuple[str, ...] = ("l40s", "h100")
    context: int = 8192
    concurrency: int = 32
    prompt: int = 0
    output: int = 0
    quant: str = AS_IT_IS
    kv: str = "bf16"
    formula: str = "program"
    price: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Sheets:
    """A table as texts: heads, rows, which columns are words, and what the heads mean."""

    heads: list[str]
    rows: list[list[str]]
    left: list[int]
    legend: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to a wish."""

    table: BudgetTable
    facts: str
    hardware: list[str]
    memory: Sheets
    times: Sheets
    chart: dict[str, Any] = field(repr=False)


def model_names() -> tuple[str, ...]:
    """Models that can be planned with; no path is ever taken from a page."""
    return known_names()


def hardware_names(server: Hardware | None) -> dict[str, str]:
    """Name → what a list shows."""
    here = {} if server is None else {SERVER: f"{server.title} (measured)"}
    return here | {name: one.title for name, one in known_hardware().items()}


def server_hardware(limits: Mapping[str, Any], *, is_here: bool) -> Hardware | None:
    """The served machine, from /limits; None where its rates are not known. is_here: it is this
    machine, so that its memory is known."""
    rates = limits.get("machine")
    if not rates:
        return None
    threads = rates["threads"]
    return Hardware(
        name=SERVER,
        title=f"this server, {threads} thread{'s' * (threads != 1)}, {rates['isa']}",
        kind="cpu",
        memory_bytes=local_memory_bytes() if is_here else None,
        read_bytes_per_s=1e9 * rates["read_gb_per_s"],
        int8_ops_per_s=1e9 * rates["int8_gop_per_s"],
        bf16_ops_per_s=1e9 * rates["bf16_gop_per_s"],
        f32_ops_per_s=1e9 * rates["f32_gop_per_s"],
        cache_bytes=rates["llc_bytes"],
        measured=True,
    )


def question(wish: Wish, server: Hardware | None) -> Question:
    """The wish in the planner's words. Raises UsageError where it makes no sense."""
    machines = [
        server if name == SERVER and server is not None else find_hardware(name)
        for name in wish.hardware
    ]
    many = wish.concurrency
    return ask(
        wish.model,
        hardware=machines,
        context=str(wish.context),
        concurrency="1" if many == 1 else f"1,{many}",
        prompt=str(wish.prompt) if wish.prompt else None,
        output=str(wish.output) if wish.output else None,
        quant=None if wish.quant == AS_IT_IS else wish.quant,
        kv_cache_dtype=wish.kv,
        ttft=f"{wish.ttft_ms:.9g}ms" if wish.ttft_ms else None,
        tpot=f"{wish.tpot_ms:.9g}ms" if wish.tpot_ms else None,
        price=f"{wish.price:.9g}" if wish.price else None,
        formula=wish.formula,
    )


def answer(wish: Wish, server: Hardware | None) -> Plan:
    """Raises UsageError or ModelFileError, one sentence each."""
    table = plan(question(wish, server))
    return Plan(
        table,
        " · ".join(facts(table)),
        [f"{one.name}: {hardware_facts(one)}" for one in table.question.hardware],
        _sheets(table, memory_columns(), memory_legend),
        _sheets(table, time_columns(table), time_legend),
        memory_chart(table),
    )


class Answers:
    """What was asked lately, for all pages: they ask alike, and sliders go back and forth. Nobody
    changes what it gives."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Wish, str], Plan] = {}

    def answer(self, wish: Wish, server: Hardware | None) -> Plan:
        """As `answer`; from any thread."""
        key = wish, repr(server)
        found = self._kept.pop(key, None) or answer(wish, server)
        self._kept[key] = found  # the newest last
        for oldest in list(self._kept)[:-MAX_ANSWERS]:
            self._kept.pop(oldest, None)
        return found


def explain(table: BudgetTable) -> list[tuple[str, list[list[str]]]]:
    """Every formula with its numbers: (title, rows of what, formula, numbers, result)."""
    return [
        (
            section.title,
            [[line.what, line.formula, line.numbers, line.result] for line in section.lines],
        )
        for section in why(table.question, table.rows)
    ]


def steps(table: BudgetTable) -> list[tuple[str, list[str]]]:
    """The advice by stage, in its order."""
    found = table.recommendation.steps
    return [
        (
            f"{number}. {stage.value}",
            [
                f"{'✓' if step.worth else '·'} {step.title}: {step.text}"
                for step in found
                if step.stage is stage
            ],
        )
        for number, stage in enumerate(Stage, 1)
    ]


def memory_chart(table: BudgetTable) -> dict[str, Any]:
    """Memory by parts, a bar per row, and a line where the hardware's memory ends. GB."""
    names = [f"{row.hardware.name}, {row.concurrency:,} at once" for row in table.rows]
    chart = charts.base(charts.axis("GB", min=0), charts.axis(""))
    chart["yAxis"] = {
        **charts.axis(""),
        "type": "category",
        "data": names,
        "inverse": True,
        "splitLine": {"show": False},
    }
    chart["grid"] = {"left": 8, "right": 24, "top": 56, "bottom": 40, "containLabel": True}
    chart["aria"] = {"enabled": True, "decal": {"show": True}}
    chart["tooltip"] = {"trigger": "axis", "renderMode": "richText", "confine": True}
    chart["series"] = [
        {
            "type": "bar",
            "stack": "memory",
            "name": name,
            "barMaxWidth": 26,
            "data": [round(getattr(row.memory, part) / 1e9, 3) for row in table.rows],
        }
        for part, name in zip(_PARTS, _PART_NAMES, strict=True)
    ]
    ends = [
        [round(row.hardware.memory_bytes / 1e9, 3), place]
        for place, row in enumerate(table.rows)
        if row.hardware.memory_bytes is not None
    ]
    chart["series"].append(
        {
            "type": "scatter",
            "name": "all there is",
            "symbol": "rect",
            "symbolSize": [4, 34],
            "itemStyle": {"color": charts.GREY},
            "data": ends,
        }
    )
    return chart


def _sheets(table: BudgetTable, columns: Sequence[Column], legend: Any) -> Sheets:
    heads = [column.head for column in columns]
    return Sheets(
        heads,
        [[column.cell(row) for column in columns] for row in table.rows],
        [place for place, column in enumerate(columns) if column.left],
        legend(table, heads),
    )
