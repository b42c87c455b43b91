"""Sampling: what each parameter keeps at one position, and what comes of it, side by side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nicegui import ui

from headrace.ui.components.chart import chart, show
from headrace.ui.components.controls import slider
from headrace.ui.components.flow import Flow
from headrace.ui.facts import charts, curves
from headrace.ui.facts.branch import Branch
from headrace.ui.facts.resample import Known
from headrace.ui.facts.talk import Account
from headrace.ui.facts.traces import Token
from headrace.ui.growing import grow, prompt_ids
from headrace.ui.shell import Frame

#: Named candidates of the one position: so many that nearly every curve is exact.
NUM_NAMED = 1000
#: The grid: temperatures down, filters across.
TEMPERATURES = (0.0, 0.7, 1.2, 2.0)
FILTERS: tuple[tuple[str, dict[str, float]], ...] = (
    ("nothing removed", {}),
    ("top-p 0.9", {"top_p": 0.9}),
    ("min-p 0.1", {"min_p": 0.1}),
)
GRID_TOKENS = 48
#: Filters whose effect is drawn: name in a request, title, axis.
_CURVES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("top_k", "top-k", {"log": True}),
    ("top_p", "top-p", {"max": 1}),
    ("min_p", "min-p", {}),
)


async def build(frame: Frame) -> None:
    """The page."""
    _Sampling(frame).build()


@dataclass(slots=True)
class _Cell:
    """One output of the grid."""

    flow: Flow
    facts: ui.label
    ids: list[int] = field(default_factory=list)
    account: Account = field(default_factory=Account)


class _Sampling:
    """One position and one grid in one open page."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._temperature = 1.0
        self._branch: Branch | None = None
        self._running: asyncio.Task[None] | None = None
        self._cells: list[_Cell] = []

    def build(self) -> None:
        with ui.element("section").classes("hr-card").props('aria-label="Prompt"'):
            self._build_prompt()
        with ui.element("section").classes("hr-card").props('aria-label="Next token"'):
            self._build_position()
        with ui.element("section").classes("hr-card").props('aria-label="Outputs"'):
            self._build_grid()
        self._frame.every(1, self._flush)

    def _build_prompt(self) -> None:
        self._prompt = ui.textarea("Text so far", value="The best thing about rain is")
        self._prompt.props("outlined dense autogrow").style("width: 100%")
        with ui.element("div").classes("hr-row"):
            self._as_chat = ui.toggle({False: "as plain text", True: "as a chat"}, value=False)
            self._as_chat.props("no-caps dense unelevated toggle-color=primary padding='4px 10px'")
            ui.element("div").style("flex: 1")
            self._stop_button = _button("Stop", "stop", self._stop)
            self._stop_button.props("outline").set_visibility(False)
            self._buttons = [
                _button("Look at the next token", "visibility", self._look),
                _button("Draw it and go on", "skip_next", self._step),
                _button("Fill the grid", "grid_view", self._fill),
            ]
            self._buttons[0].props("unelevated color=primary", remove="flat")
            self._buttons[1].disable()

    def _build_position(self) -> None:
        ui.label("The next token").classes("hr-title")
        self._about = ui.label("Nothing is looked at yet.").classes("hr-soft").props("role=status")
        slider("Temperature", 0.1, 5.0, 0.05, self._temperature, self._warm)
        self._charts = ui.element("div").classes("hr-charts hr-wide")
        with self._charts:
            self._entropy = _chart("Entropy over temperature")
            self._by = {name: _chart(f"Left by {title} alone") for name, title, _ in _CURVES}
        self._charts.set_visibility(False)

    def _build_grid(self) -> None:
        ui.label("Outputs side by side").classes("hr-title")
        ui.label(
            f"The same prompt, {GRID_TOKENS} tokens each, all at once. distinct-2: different pairs "
            "of tokens as a share of all pairs; a text that repeats itself has few."
        ).classes("hr-soft")
        with (
            ui.element("div").classes("hr-scroll"),
            ui.element("table").classes("hr-grid") as table,
        ):
            table.props('aria-label="Outputs"')
            with ui.element("thead"), ui.element("tr"):
                with ui.element("th"):
                    ui.label("temperature")
                for name, _ in FILTERS:
                    with ui.element("th").props("scope=col"):
                        ui.label(name)
            with ui.element("tbody"):
                for temperature in TEMPERATURES:
                    self._build_row(temperature)

    def _build_row(self, temperature: float) -> None:
        with ui.element("tr"):
            with ui.element("th").props("scope=row"):
                ui.label(f"{temperature:g}" if temperature else "0 (greedy)")
            for _ in FILTERS:
                with ui.element("td"):
                    flow = Flow()
                    self._cells.append(_Cell(flow, ui.label("").classes("hr-soft")))

    # ---- one position -------------------------------------------------------------------------

    def _look(self) -> None:
        self._start(self._look_at(None))

    def _step(self) -> None:
        if self._branch is not None and self._branch.tokens:
            self._start(self._look_at(self._branch))

    async def _look_at(self, before: Branch | None) -> None:
        """The distribution after the prompt, or after what was drawn before."""
        if before is None:
            text, as_chat = self._prompt.value or "", bool(self._as_chat.value)
            ids = await prompt_ids(self._frame.backend, text, as_chat)
            branch = Branch(ids)
        else:
            ids = (*before.prompt, *(token.id for token in before.tokens))
            branch = Branch(ids)
        body = branch.body({"temperature": self._temperature, "max_tokens": 1}, NUM_NAMED)
        async with contextlib.aclosing(grow(self._frame.backend, branch, body)) as tokens:
            async for _ in tokens:
                pass
        if before is not None:
            self._prompt.value = f"{self._prompt.value or ''}{before.text}"
        self._branch = branch
        self._draw(branch.tokens[0] if branch.tokens else None)

    def _warm(self, temperature: float) -> None:
        self._temperature = temperature
        if self._branch is not None and self._branch.tokens:
            self._draw(self._branch.tokens[0])

    def _draw(self, token: Token | None) -> None:
        if token is None:  # the server ended without one
            return
        known = token.known
        self._buttons[1].enable()
        self._about.text = _story(token, known)
        self._charts.set_visibility(known is not None)
        if known is None:
            return
        t = self._temperature
        line = curves.entropy(known)
        entropy = charts.lines(charts.axis("temperature"), charts.axis("nats"), [line])
        entropy["series"][0]["markLine"] = charts.mark(t, f"T = {t:g}")
        show(self._entropy, entropy, curves.words("Entropy over temperature, nats", line))
        for name, title, options in _CURVES:
            number, mass = curves.kept(known, t, name)
            drawn = charts.number_and_mass(charts.axis(title, **options), number, mass)
            words = curves.words(f"Candidates left by {title} alone", number)
            show(self._by[name], drawn, words)

    # ---- the grid -----------------------------------------------------------------------------

    def _fill(self) -> None:
        for cell in self._cells:
            cell.flow.empty()
            cell.facts.text = "waiting…"
            cell.ids.clear()
            cell.account = Account()
        self._start(self._fill_all())

    async def _fill_all(self) -> None:
        text, as_chat = self._prompt.value or "", bool(self._as_chat.value)
        ids = await prompt_ids(self._frame.backend, text, as_chat)
        wishes = [
            {"temperature": temperature, **removed}
            for temperature in TEMPERATURES
            for _, removed in FILTERS
        ]
        work = [self._fill_one(cell, ids, wish)
                for cell, wish in zip(self._cells, wishes, strict=True)]  # fmt: skip
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _fill_one(self, cell: _Cell, ids: tuple[int, ...], wish: dict[str, float]) -> None:
        body: dict[str, Any] = {
            "prompt": list(ids),
            "add_special_tokens": False,
            "return_token_ids": True,
            "max_tokens": GRID_TOKENS,
            **wish,
        }
        try:
            stream = self._frame.backend.stream("/v1/completions", body)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    cell.flow.add(cell.account.read(event))
                    for choice in event.get("choices") or ():
                        cell.ids.extend(choice.get("token_ids") or ())
        finally:
            if not self._frame.client.is_deleted:
                cell.flow.flush()
                share = curves.distinct(cell.ids, 2)
                told = "" if share is None else f" · distinct-2 {share:.2f}"
                cell.facts.text = f"{cell.account.num_tokens} tokens{told}"

    def _flush(self) -> None:
        for cell in self._cells:
            cell.flow.flush()

    # ---- one thing at a time ------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        if self._running is not None and not self._running.done():
            work.close()
            return
        self._frame.be_quiet()
        self._running = self._frame.run(work)
        self._running.add_done_callback(lambda _: self._show_busy(False))
        self._show_busy(True)

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _show_busy(self, busy: bool) -> None:
        if self._frame.client.is_deleted:
            return
        self._stop_button.set_visibility(busy)
        for button in self._buttons:
            button.set_visibility(not busy)


def _story(token: Token, known: Known | None) -> str:
    if known is None:
        return "This server's traces hold too little for these curves."
    likely = ", ".join(
        f"{token.text_of(one)!r} {p:.1%}"
        for one, p in zip(token.shots[0].ids[:5], token.shots[0].probabilities[:5], strict=True)
    )
    return (
        f"Of {known.num_candidates:,} candidates, the model's first: {likely}. Drawn: "
        f"{token.text!r}. Curves end where the trace, which names {len(known.ids):,}, does not "
        "tell."
    )


def _button(text: str, icon: str, action: Callable[[], None]) -> ui.button:
    return ui.button(text, on_click=action, color=None).props(f"no-caps flat icon={icon}")


def _chart(title: str) -> ui.echart:
    with ui.element("figure").style("margin: 0; min-width: 0"):
        with ui.element("figcaption").classes("hr-soft"):
            ui.label(title)
        return chart({}, title)
