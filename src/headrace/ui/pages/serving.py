"""Serving: what the server does now: load, steps, KV cache, latencies, as snapshots tell it."""

from __future__ import annotations

import contextlib
from typing import Any

from nicegui import ui

from headrace.ui.backend import BackendError
from headrace.ui.components.chart import chart
from headrace.ui.components.live import Live
from headrace.ui.components.parts import Blocks, Sheet, Tree, span, tree_nodes
from headrace.ui.facts import charts, watch
from headrace.ui.feed import News, Snapshot, understood
from headrace.ui.following import follow
from headrace.ui.shell import Frame

#: Ticks of 0.25 s between two looks at the map of blocks and at the tree.
MAP_TICKS = 8
TREE_TICKS = 16
#: Cells of the map, nodes of the tree.
MAX_CELLS = 1024
MAX_NODES = 200

_NOW = (
    ("running", "sequences that take part in steps"),
    ("waiting", "sequences that wait for a place"),
    ("tok/s out", "generated tokens per second"),
    ("tok/s in", "prompt tokens computed per second"),
    ("busy", "share of the time in steps"),
    ("KV in use", "owned and shared blocks, of all"),
)
_LATELY = (
    ("share of the bound", "how close decode steps came to the machine's limit"),
    ("prefix hits", "prompt tokens found in the cache, of those looked up"),
    ("preempted", "sequences put back to make room"),
    ("guesses kept", "of tokens tested by speculation"),
)
_EVER = (
    ("finished", "samples that ended well"),
    ("aborted, failed", "samples that clients gave up, and that failed"),
)
_SPANS = (("Now", _NOW), ("Last two minutes", _LATELY), ("Since the server started", _EVER))


async def build(frame: Frame) -> None:
    """The page."""
    _Serving(frame).build()


class _Serving:
    """What one open page shows."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._window = watch.Window()
        self._group = 0

    # ---- the page -----------------------------------------------------------------------------

    def build(self) -> None:
        self._live = Live()
        with ui.element("section").classes("hr-card hr-spans").props('aria-label="Figures"'):
            self._spans = [span(title, names) for title, names in _SPANS]
        with ui.element("div").classes("hr-charts hr-wide"):
            self._load = _chart("Requests", charts.over_time(
                charts.axis("sequences", minInterval=1),
                ("running", "waiting", "paused", "preempted"), step="end"),
                "Sequences running, waiting, paused and just preempted over time.")  # fmt: skip
            self._steps = _chart("What steps compute", charts.over_time(
                charts.axis("tokens per second"), ("decode", "prompt", "guessed")),
                "Tokens per second that steps computed: decode, prompt, guessed.")  # fmt: skip
            self._ttft = _chart("Time to first token", charts.bars("", "requests", ("TTFT",)), "")
            self._itl = _chart("Between two tokens", charts.bars("", "tokens", ("ITL",)), "")
        with ui.element("section").classes("hr-card").props('aria-label="KV cache"'):
            self._build_cache()
        with ui.element("section").classes("hr-card").props('aria-label="Requests"'):
            ui.label("Requests").classes("hr-title")
            self._requests = Sheet("Requests", watch.REQUEST_COLUMNS, "No requests.", left=(0, 1))
            self._left_out = ui.label("").classes("hr-soft")
        self._frame.every(MAP_TICKS, self._look_at_map)
        self._frame.every(TREE_TICKS, self._look_at_tree)
        self._frame.once(lambda: follow(self._frame, self._show))

    def _build_cache(self) -> None:
        with ui.element("div").classes("hr-row"):
            ui.label("KV cache").classes("hr-title").style("flex: 1")
            self._groups = ui.select({0: "all layers"}, value=0, on_change=self._choose_group)
            self._groups.props('dense outlined options-dense aria-label="Layers"')
            self._groups.set_visibility(False)
        with ui.element("div").classes("hr-columns"):
            with ui.element("div").classes("hr-stack"):
                self._blocks = chart(
                    charts.over_time(
                        charts.axis("% of blocks", min=0), ("owned", "shared", "cached")
                    ),
                    "Percent of the blocks that are owned, shared and cached, over time.",
                )
                with ui.element("div").classes("hr-legend"):
                    for letter, word in zip(
                        "fosc", ("free", "owned by one request", "shared", "cached"), strict=True
                    ):
                        ui.label("·" if letter == "f" else letter).classes(f"hr-cell hr-b{letter}")
                        ui.label(word)
                self._map = Blocks("Blocks of the KV cache, one letter each")
                self._map_facts = ui.label("").classes("hr-facts")
            with ui.element("div").classes("hr-stack"):
                ui.label("Prefix tree").classes("hr-title")
                self._tree = Tree("Prefix tree")
                self._tree_facts = ui.label("").classes("hr-facts")

    # ---- following ----------------------------------------------------------------------------

    def _show(self, news: News) -> None:
        if news.restarted:
            self._window.clear()
            self._live.forget(self._load, self._steps, self._blocks)
        load, steps, blocks = list[watch.Point](), list[watch.Point](), list[watch.Point]()
        before = None
        for snapshot in news.new:
            before = self._window.add(snapshot)
            load.append(watch.load_point(before, snapshot))
            blocks.append(watch.block_point(snapshot))
            if before is not None:
                steps.append(watch.step_point(before, snapshot))
        self._live.rows(self._load, load)
        self._live.rows(self._blocks, blocks)
        self._live.rows(self._steps, steps)
        if news.new:
            self._show_now(before or news.new[-1], news.new[-1])
        self._live.flush()

    def _show_now(self, before: Snapshot, now: Snapshot) -> None:
        figures = iter(_figures(self._window, before, now))
        for one, (_, names) in zip(self._spans, _SPANS, strict=True):
            self._live.put(one.tiles, [next(figures) for _ in names])
        lately = watch.span_words(self._window.seconds)
        _say(self._spans[1].title, lately.capitalize())
        for name, bars in (("ttft", self._ttft), ("itl", self._itl)):
            counts = self._window.counts(name)
            self._live.options(bars, _histogram(now[name]["bounds"], counts, lately))
        requests = now["requests"]
        self._live.put(self._requests, [watch.request_row(one) for one in requests["list"]])
        left_out = requests["left_out"]
        _say(self._left_out, f"{left_out:,} more are not listed." if left_out else "")
        if len(now["kv"]) > 1 and not self._groups.visible:
            self._groups.set_options(
                {i: _group_name(group) for i, group in enumerate(now["kv"])}, value=0
            )
            self._groups.set_visibility(True)

    async def _choose_group(self) -> None:
        self._group = int(self._groups.value or 0)
        await self._look_at_map()

    async def _look_at_map(self) -> None:
        with contextlib.suppress(BackendError), understood("block states"):  # the feed complains
            found = await self._frame.backend.get("/kv_map", group=self._group, max=MAX_CELLS)
            self._live.put(self._map, found["map"])
            self._live.flush()
            _say(self._map_facts, _map_words(found))

    async def _look_at_tree(self) -> None:
        with contextlib.suppress(BackendError), understood("prefixes"):
            found = await self._frame.backend.get("/prefix_tree", max_nodes=MAX_NODES)
            self._live.put(self._tree, tree_nodes(found["list"]))
            self._live.flush()
            _say(self._tree_facts, _tree_words(found))


def _chart(title: str, options: dict[str, Any], words: str) -> ui.echart:
    with ui.element("section").classes("hr-card").props(f'aria-label="{title}"'):
        ui.label(title).classes("hr-title")
        return chart(options, words or title)


def _figures(window: watch.Window, before: Snapshot, now: Snapshot) -> list[str]:
    """The tiles' texts, in their order."""
    requests = now["requests"]
    point = watch.step_point(before, now)
    seconds = max(now["time"] - before["time"], 1e-3)
    out = watch.change(before, now, "tokens", "output")
    busy = watch.in_steps(before, now, "seconds") / seconds
    ends = window.ends or (now, now)
    bound = watch.bound_share(*ends, "decode")
    owned, shared = watch.block_point(now)[1:3]
    hits = window.share(("prefix", "hit_tokens"), ("prefix", "looked_up_tokens"))
    kept = window.share(("speculation", "accepted"), ("speculation", "tested"))
    finished = requests["finished"]
    return [
        f"{requests['running']:,}",
        f"{requests['waiting']:,}",
        f"{out / seconds:,.0f}",
        f"{point[2]:,.0f}",
        f"{min(busy, 1.0):.0%}",
        f"{(owned or 0) + (shared or 0):.3g}%",
        "idle" if bound is None else f"{bound:.0%}",
        _percent(hits),
        f"{window.change('preemptions'):.0f}",
        _percent(kept),
        f"{finished['stop'] + finished['length']:,}",
        f"{finished['abort']:,}, {finished['error']:,}",
    ]


def _histogram(bounds: list[float], counts: list[int], lately: str) -> dict[str, Any]:
    """Bars from the first to the last that counted something, and quantiles as the axis' name."""
    words = [f"≤ {watch.seconds(border)}" for border in bounds]
    words.append(f"> {watch.seconds(bounds[-1])}")
    full = [place for place, count in enumerate(counts) if count]
    first, last = (full[0], full[-1]) if full else (0, len(words) - 1)
    quantiles = ", ".join(
        f"{name} {watch.quantile(bounds, counts, share)}"
        for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
    )
    return {
        "xAxis": {
            "data": words[first : last + 1],
            "name": f"{lately}: {quantiles if full else 'none'}",
        },
        "aria": {"label": {"description": f"{lately}, {sum(counts):,} measured: {quantiles}."}},
        "series": [{"data": counts[first : last + 1]}],
    }


def _map_words(found: dict[str, Any]) -> str:
    counts = found["counts"]
    words = [f"{counts[state]:,} {state}" for state in ("free", "owned", "shared", "cached")]
    each = found["cell_blocks"]
    of = f"blocks of {found['block_size']} tokens"
    per = f"; a letter stands for {each} blocks" if each > 1 else ""
    return f"{', '.join(words)} {of}{per}"


def _tree_words(found: dict[str, Any]) -> str:
    if not found["enabled"]:
        return "Prefix caching is off."
    if not found["nodes"]:
        return "Nothing is kept yet: the first request's tokens will be here."
    more = f", {found['left_out']:,} not shown" if found["left_out"] else ""
    return (
        f"{found['nodes']:,} nodes{more}, {found['tokens']:,} tokens kept. A bar reaches from the "
        "first to the last token of its node; hatched: in use, × by how many."
    )


def _group_name(group: dict[str, Any]) -> str:
    window = group["window"]
    return "layers that see all" if window is None else f"layers with a window of {window:,}"


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{share:.0%}"


def _say(label: ui.label, text: str) -> None:
    if label.text != text:
        label.text = text
