"""Plan: the budget table of a model on some hardware, with sliders."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from nicegui import ui

from headrace.errors import EndpointError, HeadraceError
from headrace.limits.plan import Hardware
from headrace.ui.components.chart import chart, show
from headrace.ui.components.controls import slider
from headrace.ui.components.parts import Sheet
from headrace.ui.components.range import Range
from headrace.ui.facts import planning
from headrace.ui.facts.planning import Plan, Wish
from headrace.ui.feed import understood
from headrace.ui.shell import Frame

#: So long a plan waits for the server's rates, seconds.
MEET_S = 1.5
_WHY_COLUMNS = ("what", "formula", "numbers", "result")


async def build(frame: Frame) -> None:
    """The page."""
    _Plan(frame).build()


class _Plan:
    """One wish in one open page."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._wish = Wish()
        self._server: Hardware | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answered: Wish | None = None
        self._plan: Plan | None = None
        self._why_is_open = False

    def build(self) -> None:
        with ui.element("div").classes("hr-lab hr-plan"):
            self._question = ui.element("aside").classes("hr-card").props('aria-label="Question"')
            with self._question:
                ui.label("Question").classes("hr-title")
                Range("", 0, 1, 1, 0, "", lambda _: None).set_visibility(False)  # as it comes later
            with ui.element("div").classes("hr-stack"):
                self._problem = ui.label("").classes("hr-warn").props("role=alert")
                self._problem.set_visibility(False)
                with ui.element("section").classes("hr-card").props('aria-label="Memory"'):
                    self._build_memory()
                with ui.element("section").classes("hr-card").props('aria-label="Times"'):
                    ui.label("Times, at best").classes("hr-title")
                    self._times = Sheet("Times", ("hardware",), "…").mark("times")
                    self._times_legend = ui.label("").classes("hr-soft")
                with ui.element("section").classes("hr-card").props('aria-label="Advice"'):
                    ui.label("Recommendation").classes("hr-title")
                    self._advice = ui.element("div").classes("hr-stack")
                with ui.element("section").classes("hr-card").props('aria-label="Why"'):
                    self._build_why()
        self._frame.once(self._begin)

    async def _begin(self) -> None:
        await self._meet_server()
        with self._question:
            self._build_question()
        self._ask()

    async def _meet_server(self) -> None:
        """The machine and the model of the server at hand, where it answers."""
        names = planning.model_names()
        try:
            async with asyncio.timeout(MEET_S):
                limits = await self._frame.backend.get("/limits")
            with understood("limits"):
                is_here = _is_here(self._frame.backend.url)
                self._server = planning.server_hardware(limits, is_here=is_here)
                name, most = str(limits["model"]["name"]), int(limits["model"]["max_model_len"])
        except (EndpointError, TimeoutError):
            return  # plans need no server
        if name in names:
            context = max((n for n in planning.LENGTHS if n <= most), default=planning.LENGTHS[0])
            self._wish = replace(self._wish, model=name, context=context)
        if self._server is not None:
            self._wish = replace(self._wish, hardware=(planning.SERVER, *self._wish.hardware))

    def _build_question(self) -> None:
        w = self._wish
        self._choice("Model", planning.model_names(), w.model, "model")
        machines = ui.select(
            planning.hardware_names(self._server), value=list(w.hardware), multiple=True,
            label="Hardware", on_change=lambda e: self._set(hardware=tuple(e.value or ())),
        )  # fmt: skip
        machines.props("outlined dense options-dense use-chips").style("width: 100%")
        self._ladder("Context", planning.LENGTHS, w.context, "context")
        self._ladder("At once", planning.CONCURRENCIES, w.concurrency, "concurrency")
        self._ladder("Prompt", planning.PROMPTS, w.prompt, "prompt", "the rest")
        self._ladder("Output", planning.PROMPTS, w.output, "output", "not said")
        self._choice("Weights", planning.QUANTS, w.quant, "quant")
        self._choice("KV cache", planning.KV_DTYPES, w.kv, "kv")
        self._number("Price, $ an hour", "price")
        self._number("Wanted TTFT, ms", "ttft_ms")
        self._number("Wanted TPOT, ms", "tpot_ms")
        self._choice("Formula", ("program", "paper"), w.formula, "formula")
        ui.label(
            "“program” sums the model's own ops; “paper” takes the closed forms of the literature. "
            "The same as headrace plan; no weights are needed."
        ).classes("hr-soft")

    def _build_memory(self) -> None:
        ui.label("Memory, GB").classes("hr-title")
        self._facts = ui.label("").classes("hr-facts")
        self._hardware = ui.element("ul").classes("hr-list hr-soft")
        self._chart = chart({}, "Memory by parts")
        self._chart.set_visibility(False)
        self._memory = Sheet("Memory", ("hardware",), "…").mark("memory")
        self._memory_legend = ui.label("").classes("hr-soft")

    def _build_why(self) -> None:
        fold = ui.element("details").classes("hr-fold hr-first")
        fold.on("toggle", lambda e: self._open_why(bool(e.args)),
                js_handler="(event) => emit(event.target.open)")  # fmt: skip
        with fold, ui.element("summary"):
            ui.label("Every formula with its numbers").style("display: inline")
        with fold:
            self._why = ui.element("div").classes("hr-stack")

    # ---- controls -----------------------------------------------------------------------------

    def _choice(self, label: str, names: Sequence[str], value: str, field: str) -> None:
        control = ui.select(
            list(names), value=value, label=label, on_change=lambda e: self._set(**{field: e.value})
        )
        control.props("outlined dense options-dense").style("width: 100%").mark(label)

    def _ladder(
        self, label: str, values: Sequence[int], value: int, field: str, zero: str = ""
    ) -> None:
        def shown(place: float) -> str:
            return f"{values[int(place)]:,}" if values[int(place)] else zero

        slider(label, 0, len(values) - 1, 1, values.index(value),
               lambda place: self._set(**{field: values[int(place)]}), shown)  # fmt: skip

    def _number(self, label: str, field: str) -> None:
        control = ui.number(label, min=0, on_change=lambda e: self._set(**{field: e.value or None}))
        control.props("dense outlined clearable").style("width: 100%").mark(label)

    def _set(self, **changes: Any) -> None:
        self._wish = replace(self._wish, **changes)
        self._ask()

    # ---- answers ------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self._answering is None or self._answering.done():
            self._answering = self._frame.run(self._answer())

    async def _answer(self) -> None:
        """Answers until nothing was moved meanwhile; the newest wish wins."""
        answer = self._frame.plans.answer
        while self._answered != self._wish:
            wish = self._wish
            try:
                if not wish.hardware:
                    self._complain("Choose some hardware.")
                else:
                    self._show(await asyncio.to_thread(answer, wish, self._server))
                    self._complain("")
                    await self._explain()
            except HeadraceError as error:
                self._complain(str(error))
            self._answered = wish

    def _complain(self, sentence: str) -> None:
        self._problem.text = sentence
        self._problem.set_visibility(bool(sentence))

    def _show(self, plan: Plan) -> None:
        self._plan = plan
        self._facts.text = plan.facts
        self._hardware.clear()
        with self._hardware:
            for words in plan.hardware:
                with ui.element("li"):
                    ui.label(words)
        for sheet, label, found in (
            (self._memory, self._memory_legend, plan.memory),
            (self._times, self._times_legend, plan.times),
        ):
            sheet.show(found.heads, found.rows, found.left)
            label.text = found.legend
        self._chart.style(f"height: {90 + 44 * len(plan.memory.rows)}px")
        self._chart.set_visibility(True)
        show(self._chart, plan.chart, "Memory by parts, a bar per row of the table below.")
        self._advise(plan)

    def _advise(self, plan: Plan) -> None:
        found = plan.table.recommendation
        self._advice.clear()
        with self._advice:
            for verdict in found.verdicts:
                ui.label(verdict)
            if found.choice:
                ui.label(f"→ {found.choice}").style("font-weight: 600")
            if found.focus is not None and found.steps:
                focus = found.focus
                ui.label(
                    f"What to do with {focus.hardware.name} at {focus.concurrency} at once"
                ).classes("hr-subtitle")
                if found.note:
                    ui.label(found.note).classes("hr-soft")
                for stage, lines in planning.steps(plan.table):
                    if lines:
                        ui.label(stage).style("font-weight: 600; font-size: 13px")
                        for line in lines:
                            ui.label(line).classes("hr-step")
            if plan.table.engines:
                ui.label("Engines").classes("hr-subtitle")
                for engine in plan.table.engines:
                    mark = "✓" if engine.suits else "✗"
                    ui.label(f"{mark} {engine.engine}: {engine.why}").classes("hr-step")
            if plan.table.serve is not None:
                ui.label("Start it").classes("hr-subtitle")
                ui.label(plan.table.serve.text).classes("hr-command hr-mono").mark("command")
                for note in plan.table.serve.notes:
                    ui.label(note).classes("hr-soft")

    def _open_why(self, is_open: bool) -> None:
        self._why_is_open = is_open
        if is_open:
            self._frame.run(self._explain())

    async def _explain(self) -> None:
        if not self._why_is_open or self._plan is None:
            return
        sections = await asyncio.to_thread(planning.explain, self._plan.table)
        self._why.clear()
        with self._why:
            for title, rows in sections:
                ui.label(title).classes("hr-subtitle")
                Sheet(title, _WHY_COLUMNS, left=(0, 1, 2), width=700).start(rows)


def _is_here(url: str) -> bool:
    """Whether a server's address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
