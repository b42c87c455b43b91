"""Token inspector: every token with the distribution it was drawn from, stage by stage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from nicegui import ui

from headrace.ui.backend import BackendError
from headrace.ui.components.controls import off_at, slider
from headrace.ui.components.ladder import Ladder
from headrace.ui.components.strip import Strip
from headrace.ui.facts.branch import Branch
from headrace.ui.facts.resample import Wish
from headrace.ui.facts.traces import TITLES, Shot, Token, recompute
from headrace.ui.growing import grow, prompt_ids
from headrace.ui.shell import Frame

#: The server bounds candidates · tokens of a request.
MAX_TRACED = 16_384
MAX_BRANCHES = 12
_START = Wish(0.8, 0, 0.95, 0.05)


async def build(frame: Frame) -> None:
    """The page."""
    _Inspector(frame).build()


@dataclass(frozen=True, slots=True)
class _Shown:
    """A branch and where it is on the page."""

    branch: Branch
    strip: Strip
    facts: ui.label


class _Inspector:
    """The branches of one prompt in one open page."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._wish = _START
        self._is_moved = False  # whether the sliders tell another story than the draw
        self._branches: list[_Shown] = []
        self._picked: tuple[Branch, int] | None = None
        self._running: asyncio.Task[None] | None = None
        self._num_named, self._num_tokens = 64, 128

    # ---- the page -----------------------------------------------------------------------------

    def build(self) -> None:
        with ui.element("section").classes("hr-card").props('aria-label="Prompt"'):
            self._build_prompt()
        with ui.element("div").classes("hr-split"):
            with ui.element("section").classes("hr-card").props('aria-label="Tokens"'):
                self._build_strips()
            with ui.element("aside").classes("hr-card").props('aria-label="Sampling"'):
                self._build_sliders()
        with ui.element("section").classes("hr-card").props('aria-label="Candidates"'):
            ui.label("Candidates, stage by stage").classes("hr-title")
            self._about = ui.label("Pick a token above: with a click, or with the arrow keys.")
            self._about.classes("hr-soft").props("role=status")
            self._ladder = Ladder(self._fork)
        self._frame.every(1, self._flush)

    def _build_prompt(self) -> None:
        self._prompt = (
            ui.textarea("Prompt", value="Explain in two sentences why the sky is blue.")
            .props("outlined dense autogrow")
            .style("width: 100%")
        )
        self._prompt.on("keydown.ctrl.enter", self._begin)
        with ui.element("div").classes("hr-row"):
            self._as_chat = ui.toggle({True: "as a chat", False: "as plain text"}, value=True)
            self._as_chat.props("no-caps dense unelevated toggle-color=primary padding='4px 10px'")
            lengths = ui.select(
                [32, 64, 128, 256], value=self._num_tokens, label="tokens",
                on_change=lambda e: setattr(self, "_num_tokens", e.value),
            )  # fmt: skip
            named = ui.select(
                [16, 32, 64], value=self._num_named, label="candidates named",
                on_change=lambda e: setattr(self, "_num_named", e.value),
            )  # fmt: skip
            for field in (lengths, named):
                field.props("outlined dense options-dense").style("min-width: 160px")
            ui.element("div").style("flex: 1")
            self._stop_button = ui.button("Stop", on_click=self._stop, color=None)
            self._stop_button.props("outline no-caps icon=stop").set_visibility(False)
            self._run_button = ui.button("Generate", on_click=self._begin)
            self._run_button.props("no-caps unelevated icon=play_arrow")

    def _build_strips(self) -> None:
        with ui.element("div").classes("hr-row"):
            ui.label("Tokens").classes("hr-title").style("flex: 1")
            by = ui.toggle(
                {"p": "by probability", "h": "by entropy"}, value="p",
                on_change=lambda e: self._colour_by(e.value),
            )  # fmt: skip
            by.props("no-caps dense unelevated toggle-color=primary padding='4px 10px'")
        with ui.element("div").classes("hr-legend").props("aria-hidden=true"):
            ui.label("likely, sure")
            for level in range(8):
                ui.label("abc").classes(f"hr-token p{level} h{level}")
            ui.label("unlikely, open")
        self._by = by
        self._strips = ui.element("div").classes("hr-stack")
        with self._strips:
            self._hint = ui.label("Nothing is generated yet.").classes("hr-soft")
            Strip("", lambda _: None).set_visibility(False)  # the browser learns what one is

    def _build_sliders(self) -> None:
        ui.label("Sampling").classes("hr-title")
        w = self._wish
        slider(
            "Temperature",
            0.0,
            3.0,
            0.05,
            w.temperature,
            lambda v: self._moved("temperature", v),
            off_at(0.0, "greedy"),
        )
        slider("Top-k", 0, 100, 1, w.top_k, lambda v: self._moved("top_k", int(v)), off_at(0))
        slider(
            "Typical-p",
            0.05,
            1.0,
            0.01,
            w.typical_p,
            lambda v: self._moved("typical_p", v),
            off_at(1.0),
        )
        slider("Top-p", 0.05, 1.0, 0.01, w.top_p, lambda v: self._moved("top_p", v), off_at(1.0))
        slider("Min-p", 0.0, 0.5, 0.01, w.min_p,
               lambda v: self._moved("min_p", v), off_at(0.0))  # fmt: skip
        ui.label(
            "They recompute the picked token at once, from its stored trace. What is generated "
            "next, or forked, is drawn with them."
        ).classes("hr-soft")
        self._as_drawn = ui.button("Show it as drawn", on_click=self._show_as_drawn, color=None)
        self._as_drawn.props("flat dense no-caps").set_visibility(False)

    # ---- generating ---------------------------------------------------------------------------

    def _begin(self) -> None:
        text = self._prompt.value or ""
        if self._is_busy or not text:
            return
        self._strips.clear()
        self._branches.clear()
        self._pick(None)
        self._start(self._generate(text, bool(self._as_chat.value)))

    async def _generate(self, text: str, as_chat: bool) -> None:
        ids = await prompt_ids(self._frame.backend, text, as_chat)
        await self._grow(self._add(Branch(ids)))

    def _fork(self, candidate: int) -> None:
        if self._is_busy or self._picked is None:
            return
        if len(self._branches) >= MAX_BRANCHES:
            self._frame.say(f"There are {MAX_BRANCHES} branches; generate anew to begin again.")
            return
        branch, index = self._picked
        child = branch.fork(index, candidate)
        place = self._add(child)
        self._branches[place].strip.add(child.tokens[0])
        self._start(self._grow(place))

    def _add(self, branch: Branch) -> int:
        """A place for a branch on the page; returns its number."""
        place = len(self._branches)
        title = "Answer" if branch.parent is None else f"Branch {place}"
        with self._strips, ui.element("div").classes("hr-branch"):
            with ui.element("div").classes("hr-row"):
                ui.label(title).classes("hr-title").style("font-size: 14px")
                if branch.parent is not None:
                    old, new = branch.parent.tokens[branch.at], branch.tokens[0]
                    change = "again" if new.id == old.id else f"instead of {old.text!r}"
                    ui.label(f"token {branch.at + 1}: {new.text!r} {change}").classes("hr-soft")
            strip = Strip(
                f"{title}: tokens", lambda i: self._pick((branch, i)), self._by.value or "p"
            )
            facts = ui.label("").classes("hr-facts")
        self._branches.append(_Shown(branch, strip, facts))
        return place

    async def _grow(self, place: int) -> None:
        shown = self._branches[place]
        branch, strip = shown.branch, shown.strip
        sampling = {
            "temperature": self._wish.temperature,
            "top_k": self._wish.top_k,
            "typical_p": self._wish.typical_p,
            "top_p": self._wish.top_p,
            "min_p": self._wish.min_p,
            "max_tokens": min(self._num_tokens, MAX_TRACED // self._num_named),
        }
        account = branch.account
        try:
            tokens = grow(self._frame.backend, branch, branch.body(sampling, self._num_named))
            async with contextlib.aclosing(tokens):
                async for token in tokens:
                    strip.add(token)
        except BackendError:
            account.note = "interrupted"
            raise
        except asyncio.CancelledError:
            account.note = "stopped"
            raise
        finally:
            if not self._frame.client.is_deleted:
                strip.flush()
                shown.facts.text = " · ".join(account.facts())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._frame.be_quiet()
        self._running = self._frame.run(work)
        self._running.add_done_callback(lambda _: self._ended())
        self._show_busy(True)

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _ended(self) -> None:
        if not self._frame.client.is_deleted:
            with self._frame.client:
                self._show_busy(False)

    @property
    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def _show_busy(self, busy: bool) -> None:
        self._stop_button.set_visibility(busy)
        self._run_button.set_visibility(not busy)
        self._draw()

    def _flush(self) -> None:
        for shown in self._branches:
            shown.strip.flush()

    # ---- looking ------------------------------------------------------------------------------

    def _colour_by(self, quantity: str) -> None:
        for shown in self._branches:
            shown.strip.colour_by(quantity)

    def _pick(self, picked: tuple[Branch, int] | None) -> None:
        self._picked = picked
        for shown in self._branches:
            if picked is None or shown.branch is not picked[0]:
                shown.strip.select(-1)
        self._draw()

    def _moved(self, name: str, value: Any) -> None:
        self._wish = replace(self._wish, **{name: value})
        self._is_moved = True
        self._draw()

    def _show_as_drawn(self) -> None:
        self._is_moved = False
        self._draw()

    def _draw(self) -> None:
        """The ladder of the picked token."""
        self._as_drawn.set_visibility(self._is_moved and self._picked is not None)
        if self._picked is None:
            self._ladder.clear_view()
            return
        branch, index = self._picked
        token = branch.tokens[index]
        shots, story = self._shots(token)
        p = "no probability told" if token.probability is None else f"{token.probability:.2%}"
        there = {shot.name for shot in shots}
        off = [title for name, title in TITLES.items() if name not in there]
        story += f" Without effect: {', '.join(off)}." if off else ""
        self._about.text = f"Token {index + 1}, {token.text!r}; by the model: {p}. {story}"
        self._ladder.show(token, shots, 14, f"Token {index + 1}, {token.text!r}", self._is_busy)

    def _shots(self, token: Token) -> tuple[tuple[Shot, ...], str]:
        if not self._is_moved:
            return token.shots, "As it was drawn."
        if token.known is None:
            return token.shots, (
                "As it was drawn: this server's traces hold too little to recompute anything."
            )
        shots = recompute(token, self._wish)
        why = list(dict.fromkeys(reason for shot in shots for reason in shot.why))
        if why:
            return shots, f"Recomputed, approximate: {'; '.join(why)}."
        return shots, "Recomputed with the sliders, exact."
