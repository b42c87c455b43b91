"""Controls that several pages have: a slider with its name and value, a number or none."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from headrace.ui.components.range import Range


def slider(
    name: str,
    low: float,
    high: float,
    step: float,
    value: float,
    changed: Callable[[float], None],
    shown: Callable[[float], str] = "{:g}".format,
) -> None:
    """A slider in one line: name, track, value. changed: called with each new value."""

    def tell(number: float) -> None:
        output.text = shown(number)
        control.say(output.text)
        changed(number)

    with ui.element("div").classes("hr-slider"):
        ui.label(name).props("aria-hidden=true")
        control = Range(name, low, high, step, value, shown(value), tell)
        output = ui.label(shown(value)).classes("hr-mono").style("text-align: right")
        output.props("aria-hidden=true")


def whole_number(
    name: str, value: int | None, low: int, high: int, changed: Callable[[int | None], None]
) -> ui.number:
    """A field for an integer; empty = None. What is no such number changes nothing."""

    def tell(event: ValueChangeEventArguments[float | None]) -> None:
        if event.value is None:
            changed(None)
        elif low <= event.value <= high:
            changed(int(event.value))

    field = ui.number(name, value=value, min=low, max=high, precision=0, on_change=tell)
    return field.props("dense outlined clearable").style("width: 100%")


def seed(name: str, changed: Callable[[int | None], None]) -> ui.input:
    """A field for a seed of up to 64 bits, which no number of a browser holds; empty = None."""

    def tell(event: ValueChangeEventArguments[str | None]) -> None:
        text = (event.value or "").strip()
        if not text:
            changed(None)
        elif _is_seed(text):
            changed(int(text))

    field = ui.input(name, on_change=tell, validation={"0 … 2⁶⁴ − 1": _is_seed})
    return field.props("dense outlined clearable inputmode=numeric hide-bottom-space").style(
        "width: 100%"
    )


def _is_seed(text: str | None) -> bool:
    text = (text or "").strip()
    return not text or (
        text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64
    )


def off_at(border: float, text: str = "off") -> Callable[[float], str]:
    """Shows one value of a slider as a word."""
    return lambda value: text if value == border else f"{value:g}"
