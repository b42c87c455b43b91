"""Limits: the machine's roof, ops and steps below it, and generation against its bound."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from nicegui import ui

from headrace.ui.components.chart import chart
from headrace.ui.components.controls import slider
from headrace.ui.components.live import Live
from headrace.ui.components.parts import Sheet, span
from headrace.ui.facts import charts, roof, watch
from headrace.ui.feed import News, understood
from headrace.ui.following import follow
from headrace.ui.shell import Frame

#: Points of steps that are shown per kind.
MAX_STEPS = 64
_MACHINE = (
    ("read", "memory bandwidth"),
    ("int8", "peak of int8 products"),
    ("bf16", "peak of bf16 products"),
    ("f32", "peak of f32 products"),
    ("weights", "bytes of the weights"),
    ("KV per token", "bytes of keys and values of one token"),
)
_NOW = (("decode", "generated tokens per second in decode steps"),)
_LATELY = (
    ("decode, of the bound", "how close decode steps came to the limit"),
    ("prefill, of the bound", "how close steps with prompts came to the limit"),
)
_SPANS = (
    ("Measured when the server started", _MACHINE),
    ("Now", _NOW),
    ("Last two minutes", _LATELY),
)


async def build(frame: Frame) -> None:
    """The page."""
    _Limits(frame).build()


class _Limits:
    """What one open page shows."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._window = watch.Window()
        self._steps = {kind: deque[tuple[float, float]](maxlen=MAX_STEPS) for kind in watch.KINDS}
        self._load = {"batch": 1, "context": 512, "prompt": 128}
        self._asking: asyncio.Task[None] | None = None
        self._facts: list[str] = []

    def build(self) -> None:
        self._live = Live()
        with ui.element("section").classes("hr-card").props('aria-label="Machine and model"'):
            with ui.element("div").classes("hr-spans"):
                self._spans = [span(title, names) for title, names in _SPANS]
            self._about = ui.label("").classes("hr-facts")
        with ui.element("section").classes("hr-card").props('aria-label="Roofline"'):
            ui.label("Roofline").classes("hr-title")
            self._roof = chart(
                roof.roofline(),
                "Operations per second over operations per byte: the machine's roofs, the ops of "
                "the steps below, and measured steps. The tables below have the ops in figures.",
            ).classes("hr-tall")
            ui.label(
                "Hollow: kinds of ops of the steps below, where the bound has them; those that "
                "move no byte to or from memory have no place, and stand in the tables. Filled: "
                "whole steps of this server, as they were. One above the roof: the machine was "
                "busier when the roof was measured, as the server started."
            ).classes("hr-soft")
        with ui.element("section").classes("hr-card").props('aria-label="Against the bound"'):
            ui.label("Generation against the bound").classes("hr-title")
            self._rate = chart(
                charts.over_time(charts.axis("tok/s", min=0), ("reached", "the bound")),
                "Generated tokens per second, reached and at best, over time.",
            )
            self._rate_words = ui.label(
                "Nothing was generated since this page was opened; what is will be drawn here."
            ).classes("hr-soft")
        with ui.element("section").classes("hr-card").props('aria-label="Steps"'):
            self._build_steps()
        self._frame.once(self._look)
        self._frame.once(lambda: follow(self._frame, self._show, self._ask))

    def _build_steps(self) -> None:
        ui.label("A step, op by op").classes("hr-title")
        with ui.element("div").classes("hr-columns"):
            for name, key, most in (("Batch", "batch", 64), ("Context", "context", 4096),
                                    ("Prompt", "prompt", 2048)):  # fmt: skip
                low = 1 if key == "batch" else 16
                step = 1 if key == "batch" else 16
                slider(
                    name, low, most, step, self._load[key],
                    lambda value, key=key: self._moved(key, value),  # type: ignore[misc]
                )  # fmt: skip
        with ui.element("div").classes("hr-columns hr-wide"):
            self._tables: dict[str, tuple[ui.label, Sheet]] = {}
            for kind in watch.KINDS:
                with ui.element("div").classes("hr-stack"):
                    words = ui.label("").classes("hr-soft")
                    table = Sheet(f"{kind}: ops", roof.OP_COLUMNS, "nothing known yet", left=(0, 1))
                    self._tables[kind] = (words, table)

    # ---- what the bound says ------------------------------------------------------------------

    def _moved(self, key: str, value: float) -> None:
        self._load[key] = int(value)
        self._ask()

    def _ask(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = self._frame.run(self._look())

    async def _look(self) -> None:
        asked: dict[str, int] = {}
        while asked != self._load:  # a slider moves on while the server answers
            asked = dict(self._load)
            found = await self._frame.backend.get("/limits", **asked)
            if asked == self._load:
                with understood("limits"):
                    self._show_limits(found)

    def _show_limits(self, found: dict[str, Any]) -> None:
        rates, model = found["machine"], found["model"]
        series = roof.machine(rates)
        for kind in watch.KINDS:
            step = found[kind]
            series.append(roof.ops(kind, step["ops"]))
            what = (
                f"Decode, {step['batch']} at context {step['context']:,}"
                if kind == "decode"
                else f"Prefill of {step['prompt']:,}"
            )
            words, table = self._tables[kind]
            words.text = roof.step_words(what, step)
            self._live.put(table, roof.op_rows(step["ops"], rates))
        if not any(self._steps.values()):
            self._take_recent(found["recent"])
        series += [roof.steps(kind, list(points)) for kind, points in self._steps.items()]
        self._live.options(self._roof, {"series": series})
        self._facts = _facts(rates, model)
        self._about.text = _about(rates, model)
        self._show_tiles()
        self._live.flush()

    def _take_recent(self, recent: list[dict[str, Any]]) -> None:
        for one in recent:
            if one["bytes"] and one["operations"] and one["seconds"]:
                point = one["operations"] / one["bytes"], one["operations"] / one["seconds"]
                self._steps[one["kind"]].append(point)

    # ---- what the server does -----------------------------------------------------------------

    def _show(self, news: News) -> None:
        if news.restarted:
            self._window.clear()
            self._live.forget(self._rate)
        rows, moved = list[watch.Point](), set[str]()
        for snapshot in news.new:
            before = self._window.add(snapshot)
            if before is None:
                continue
            rows.append(watch.bound_point(before, snapshot))
            for kind, points in self._steps.items():
                point = watch.roof_point(before, snapshot, kind)
                if point is not None:
                    points.append(point)
                    moved.add(kind)
        self._live.rows(self._rate, rows)
        if moved:
            self._live.options(
                self._roof,
                {"series": [roof.steps(kind, list(self._steps[kind])) for kind in sorted(moved)]},
            )
        if self._window.change("steps", "decode", "decode_tokens"):
            self._rate_words.text = ""
        self._show_tiles(rows[-1] if rows else None)
        self._live.flush()

    def _show_tiles(self, point: watch.Point | None = None) -> None:
        if not self._facts:
            return
        ends = self._window.ends
        shares = [watch.bound_share(*ends, kind) if ends else None for kind in watch.KINDS]
        reached = point[1] if point else None
        lately = watch.span_words(self._window.seconds).capitalize()
        if self._spans[2].title.text != lately:
            self._spans[2].title.text = lately
        for one, figures in zip(
            self._spans,
            (
                self._facts,
                ["idle" if reached is None else f"{reached:,.0f} tok/s"],
                ["idle" if share is None else f"{share:.0%}" for share in shares],
            ),
            strict=True,
        ):
            self._live.put(one.tiles, figures)


def _facts(rates: dict[str, Any] | None, model: dict[str, Any]) -> list[str]:
    speeds = ["—"] * 4
    if rates is not None:
        speeds = [f"{rates['read_gb_per_s']:.1f} GB/s"]
        speeds += [f"{rates[f'{unit}_gop_per_s'] / 1e3:.2f} Top/s" for unit in roof.UNITS]
    return [
        *speeds,
        f"{model['weight_bytes'] / 1e6:,.0f} MB",
        f"{model['kv_bytes_per_token'] / 1e3:,.1f} kB",
    ]


def _about(rates: dict[str, Any] | None, model: dict[str, Any]) -> str:
    words = (
        f"{model['name']}: {model['architecture']}, {model['parameters'] / 1e6:,.0f} million "
        f"parameters in {model['quantization']}, {model['layers']} layers, KV in "
        f"{model['kv_dtype']}."
    )
    if rates is None:
        return f"{words} The server was started with --no-step-limits, so it knows no roof."
    threads = rates["threads"]
    return f"{words} {threads} thread{'s' * (threads != 1)}, {rates['isa']}."
