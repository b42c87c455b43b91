"""Lab: the experiments: run one, watch it, read what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from nicegui import ui

from headrace.errors import UsageError
from headrace.ui.components.parts import Sheet
from headrace.ui.facts import findings
from headrace.ui.facts.lab_desk import Run
from headrace.ui.shell import Frame

_NO_FAULT = "no fault"


async def build(frame: Frame) -> None:
    """The page."""
    _Lab(frame).build()


class _Lab:
    """What one open page shows; runs are the desk's, so every page sees them."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._desk = frame.lab
        self._experiments: tuple[Mapping[str, Any], ...] = ()
        self._chosen: Mapping[str, Any] | None = None
        self._heads: dict[str, tuple[ui.button, ui.label]] = {}
        self._shown: tuple[Any, ...] | None = None
        self._was_running: Run | None = None

    def build(self) -> None:
        with ui.element("div").classes("hr-lab"):
            with ui.element("nav").classes("hr-card").props('aria-label="Experiments"'):
                ui.label("Experiments").classes("hr-title")
                self._list = ui.element("div").classes("hr-stack hr-picks")
                with self._list:
                    ui.label("listing them…").classes("hr-soft")
                report = ui.link("All results as one page", "/lab-report", new_tab=True)
                report.classes("hr-soft")
                self._report = report
                report.set_visibility(False)
            with ui.element("div").classes("hr-stack"):
                with ui.element("section").classes("hr-card").props('aria-label="Experiment"'):
                    self._build_head()
                self._result = ui.element("section").classes("hr-card")
                self._result.props('aria-label="Result"').set_visibility(False)
                with self._result:
                    Sheet("", ()).set_visibility(False)  # the browser learns what one is
        self._frame.every(1, self._watch)
        self._frame.once(self._load)

    def _build_head(self) -> None:
        self._title = ui.label("Choose an experiment").classes("hr-title")
        self._question = ui.label(
            "Each asks one question about inference, predicts a number before it measures, checks "
            "that the results are right, and says what the error bars carry."
        )
        self._claim = ui.label("").classes("hr-soft")
        with ui.element("div").classes("hr-row") as self._controls:
            self._fault = ui.select([_NO_FAULT], value=_NO_FAULT, label="plant a fault")
            self._fault.props("outlined dense options-dense").style("min-width: 190px")
            self._model = ui.input("model (empty: its own)")
            self._model.props("outlined dense spellcheck=false").style("min-width: 190px")
            self._sizes = ui.toggle({True: "quick", False: "full"}, value=True)
            self._sizes.props("no-caps dense unelevated toggle-color=primary padding='4px 10px'")
            self._sizes.props('role=group aria-label="Sizes"')
            self._sizes.on_value_change(lambda _: self._look_again())
            self._run_button = ui.button("Run", on_click=self._begin)
            self._run_button.props("no-caps unelevated icon=play_arrow")
            self._stop_button = ui.button("Stop", on_click=self._stop, color=None)
            self._stop_button.props("outline no-caps icon=stop")
            self._hint = ui.label("").classes("hr-soft").style("flex: 1")
        self._controls.set_visibility(False)
        with ui.element("div").classes("hr-stack").style("gap: 4px") as self._progress:
            self._bar = ui.linear_progress(0.0, size="10px", show_value=False, color="primary")
            self._bar.props('rounded aria-label="Progress"')
            self._status = ui.label("").classes("hr-soft").props("role=status")
        self._progress.set_visibility(False)

    # ---- the list -----------------------------------------------------------------------------

    async def _load(self) -> None:
        self._experiments = await self._desk.experiments()
        self._list.clear()
        with self._list:
            for one in self._experiments:
                name = one["name"]
                button = ui.button(on_click=lambda name=name: self._choose(name), color=None)
                button.props("flat no-caps align=left").classes("hr-pick").mark(f"pick {name}")
                with button, ui.element("div").classes("hr-pick-text"):
                    ui.label(name).classes("hr-pick-name")
                    said = ui.label("").classes("hr-soft")
                self._heads[name] = button, said
        await self._read_heads()
        if self._desk.busy and self._desk.run is not None:
            await self._choose(self._desk.run.name)

    async def _read_heads(self) -> None:
        for one in self._experiments:
            found = None
            try:
                found = await asyncio.to_thread(self._desk.result, one["name"])
                said = findings.headline(found) if found else "not run yet"
            except UsageError:
                said = "a result of another version"
            self._heads[one["name"]][1].text = said
            if found and self._frame.may_start_work:
                self._report.set_visibility(True)

    async def _choose(self, name: str) -> None:
        self._chosen = one = next(e for e in self._experiments if e["name"] == name)
        for other, (button, _) in self._heads.items():
            button.props("aria-current=true" if other == name else "", remove="aria-current")
            if other == name:
                button.props("aria-current=true")
        self._title.text = one["title"]
        self._question.text = one["question"]
        self._claim.text = f"What is taught: {one['claim']}"
        self._fault.set_options([_NO_FAULT, *one["faults"]], value=_NO_FAULT)
        self._fault.set_visibility(bool(one["faults"]))
        self._controls.set_visibility(True)
        self._look_again()
        await self._show_result()

    def _look_again(self) -> None:
        """Says how things stand, also where they stand as before."""
        self._shown = None
        self._watch()

    # ---- running ------------------------------------------------------------------------------

    def _may_not(self) -> bool:
        """Says so to a visitor who may neither start nor stop runs."""
        if self._frame.may_start_work:
            return False
        self._frame.say(
            "Experiments are started and stopped from this machine itself, or after a log-in with "
            "a key."
        )
        return True

    async def _begin(self) -> None:
        if self._chosen is None or self._may_not():
            return
        self._frame.be_quiet()
        fault = None if self._fault.value == _NO_FAULT else str(self._fault.value)
        try:
            model = (self._model.value or "").strip() or None
            await self._desk.begin(self._chosen["name"], fault, model, bool(self._sizes.value))
        except UsageError as error:
            self._frame.say(str(error))
        self._watch()

    async def _stop(self) -> None:
        if not self._may_not():
            await self._desk.stop()

    def _watch(self) -> None:
        """Shows how the run stands; four times a second, and only what changed."""
        run = self._desk.run
        if run is not None and run.ended and self._was_running is run:
            self._was_running = None
            self._frame.run(self._ended(run))
        if run is not None and not run.ended:
            self._was_running = run
        state = (
            self._chosen["name"] if self._chosen else None,
            (run.name, run.share, run.left_s, run.text, run.ended) if run else None,
        )
        if state == self._shown or self._chosen is None:
            return
        self._shown = state
        mine = run is not None and run.name == self._chosen["name"]
        going = run is not None and not run.ended
        self._run_button.set_visibility(not going)
        self._stop_button.set_visibility(going and mine)
        self._progress.set_visibility(going and mine)
        takes_s = self._chosen["quick_s" if self._sizes.value else "full_s"]
        takes = f"about {_length(takes_s)} on two quiet cores"
        self._hint.text = f"{run.name} is running" if run and going and not mine else takes
        if run is not None and going and mine:
            self._bar.value = run.share
            left = "" if run.left_s is None else f" · {_clock(run.left_s)} left"
            self._status.text = f"{run.share:.0%}{left} · {run.text}"

    async def _ended(self, run: Run) -> None:
        if run.problem is not None:
            self._frame.say(f"{run.name}: {run.problem}")
        elif run.stopped:
            self._frame.say(f"{run.name} was stopped; its last result stays.")
        await self._read_heads()
        if self._chosen is not None and self._chosen["name"] == run.name:
            await self._show_result()

    # ---- a result -----------------------------------------------------------------------------

    async def _show_result(self) -> None:
        assert self._chosen is not None
        name = self._chosen["name"]
        try:
            found = await asyncio.to_thread(self._desk.result, name)
        except UsageError as error:
            self._frame.say(str(error))
            found = None
        if self._chosen["name"] != name:
            return
        self._result.clear()
        self._result.set_visibility(found is not None)
        if found is not None:
            with self._result:
                self._build_result(name, found)

    def _build_result(self, name: str, found: Mapping[str, Any]) -> None:
        with ui.element("div").classes("hr-row"):
            ui.label("Result").classes("hr-title").style("flex: 1")
            ui.label(findings.headline(found)).classes("hr-soft").mark("headline")
        if found.get("passed"):
            _table("Predicted, then measured", findings.PREDICTION_COLUMNS,
                   findings.prediction_rows(found), (0, 1, 5), 820)  # fmt: skip
            sentences = findings.conclusions(found)
            if sentences:
                ui.label("Conclusions").classes("hr-subtitle")
                with ui.element("ul").classes("hr-list"):
                    for sentence in sentences:
                        with ui.element("li"):
                            ui.label(sentence)
            version = findings.cell(found.get("started"))[:40]
            for file, caption, alt in findings.figures(found):
                _picture(name, file, caption, alt, version)
        opened = "" if found.get("passed") else "open"
        with _fold("Checks", opened):
            _table("", findings.CHECK_COLUMNS, findings.check_rows(found), (0, 1, 2), 560)
        for title, columns, rows, note in findings.tables(found):
            with _fold(title):
                _table("", columns, rows, _left(rows))
                if note:
                    ui.label(note).classes("hr-soft")
        with _fold("Conditions"):
            for line in [*findings.condition_lines(found), *findings.lines(found, "notes")]:
                ui.label(line).classes("hr-soft")
        if suggestions := findings.lines(found, "try_this"):
            with _fold("Try this next"):
                for line in suggestions:
                    ui.label(line)


def _fold(title: str, opened: str = "") -> ui.element:
    """A part that opens with a click or a key."""
    fold = ui.element("details").classes("hr-fold").props(opened)
    with fold, ui.element("summary"):
        ui.label(title).style("display: inline")
    return fold


def _table(
    title: str, columns: Any, rows: list[list[str]], left: Sequence[int], width: int = 0
) -> None:
    if not rows:
        return
    if title:
        ui.label(title).classes("hr-subtitle")
    Sheet(title, columns, left=left, width=width).start(rows)


def _left(rows: list[list[str]]) -> list[int]:
    """Columns in which something is no number."""
    columns = range(len(rows[0]) if rows else 0)
    return [i for i in columns if any(row[i][:1].isalpha() for row in rows)]


def _picture(name: str, file: str, caption: str, alt: str, version: str) -> None:
    with ui.element("figure").classes("hr-figure"):
        picture = ui.element("img")
        place = "/".join(quote(part, safe="") for part in (name, file))
        picture.props["src"] = f"/ui/lab-figure/{place}?v={quote(version)}"
        picture.props["alt"] = alt
        with ui.element("figcaption").classes("hr-soft"):
            ui.label(caption)


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
