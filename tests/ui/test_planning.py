"""The Plan page's answers are the planner's: the same question, asked as a command line would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.errors import UsageError
from headrace.limits.plan import ask, plan
from headrace.limits.plan.hardware import find_hardware
from headrace.ui.facts import planning
from headrace.ui.facts.planning import Wish

WISHES = (
    Wish(),
    Wish(model="llama-2-13b", hardware=("h100",), context=1024, formula="paper", concurrency=256),
    Wish(quant="q4_k", kv="fp8", prompt=1024, output=512, price=1.5, concurrency=1),
    Wish(model="qwen3-8b", hardware=("l40s",), ttft_ms=500, tpot_ms=25),
)


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: wish.model)
def test_an_answer_is_the_planners(wish: Wish) -> None:
    found = planning.answer(wish, None)
    asked = ask(
        wish.model,
        hardware=",".join(wish.hardware),
        context=f"{wish.context}",
        concurrency=f"1,{wish.concurrency}",
        prompt=f"{wish.prompt}" if wish.prompt else None,
        output=f"{wish.output}" if wish.output else None,
        quant=None if wish.quant == planning.AS_IT_IS else wish.quant,
        kv_cache_dtype=wish.kv,
        ttft=f"{wish.ttft_ms}ms" if wish.ttft_ms else None,
        tpot=f"{wish.tpot_ms}ms" if wish.tpot_ms else None,
        price=f"{wish.price}" if wish.price else None,
        formula=wish.formula,
    )
    assert found.table.to_dict() == plan(asked).to_dict()
    total = found.memory.heads.index("total")
    for row, shown in zip(found.table.rows, found.memory.rows, strict=True):
        assert float(shown[total].replace(",", "")) == pytest.approx(
            row.memory.total / 1e9, abs=0.051
        )
    parts = found.chart["series"]
    for place, row in enumerate(found.table.rows):
        stacked = sum(series["data"][place] for series in parts if series["type"] == "bar")
        assert stacked == pytest.approx(row.memory.total / 1e9, abs=2e-3)
    assert found.memory.left == [0, found.memory.heads.index("fits")]


def test_the_servers_rates_are_hardware() -> None:
    machine = {"read_gb_per_s": 20.0, "int8_gop_per_s": 900.0, "bf16_gop_per_s": 400.0,
               "f32_gop_per_s": 200.0, "threads": 2, "isa": "avx512",
               "llc_bytes": 1 << 25}  # fmt: skip
    server = planning.server_hardware({"machine": machine}, is_here=True)
    assert server is not None
    wish = Wish(hardware=(planning.SERVER, "h100"), concurrency=1)
    rows = planning.answer(wish, server).table.rows
    assert [row.hardware.name for row in rows] == [planning.SERVER, "h100"]
    assert rows[0].times is not None
    alone = ask("llama-3.1-8b", hardware=[server, find_hardware("h100")], context="8192")
    assert [r.to_dict() for r in rows] == [r.to_dict() for r in plan(alone).rows]
    assert planning.server_hardware({"machine": None}, is_here=True) is None
    away = planning.server_hardware({"machine": machine}, is_here=False)
    assert away is not None
    assert away.memory_bytes is None, "the memory of another machine is not known"


def test_what_makes_no_sense_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="do not fit the context"):
        planning.answer(replace(Wish(), prompt=8192, output=128), None)
    with pytest.raises(UsageError, match="longer than the model's"):
        planning.answer(Wish(model="llama-2-13b", context=8192), None)


def test_ladders_hold_what_pages_begin_with() -> None:
    wish = Wish()
    assert wish.context in planning.LENGTHS
    assert wish.concurrency in planning.CONCURRENCIES
    assert list(planning.LENGTHS) == sorted(planning.LENGTHS)
    assert list(planning.CONCURRENCIES) == sorted(planning.CONCURRENCIES)
    assert set(wish.hardware) <= set(planning.hardware_names(None))
    assert wish.model in planning.model_names()


def test_every_formula_of_the_planner_is_there() -> None:
    found = planning.answer(Wish(hardware=("h100",)), None)
    sections = planning.explain(found.table)
    assert sections[0][0] == "The model"
    assert any("memory" in title for title, _ in sections)
    assert all(len(row) == 4 for _, rows in sections for row in rows)


def test_answers_are_kept_for_who_asks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Wish]()
    found = planning.answer(Wish(), None)

    def answer(wish: Wish, server: object) -> planning.Plan:
        asked.append(wish)
        return found

    monkeypatch.setattr(planning, "answer", answer)
    answers = planning.Answers()
    for _ in range(2):
        assert answers.answer(Wish(concurrency=2), None) is found
    assert asked == [Wish(concurrency=2)]
    for context in range(2 * planning.MAX_ANSWERS):
        answers.answer(Wish(context=context), None)
    answers.answer(Wish(context=context), None)
    assert len(asked) == 1 + 2 * planning.MAX_ANSWERS
    answers.answer(Wish(concurrency=2), None)  # long forgotten
    assert asked.count(Wish(concurrency=2)) == 2
