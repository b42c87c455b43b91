"""Range: a slider that tells its value in words. See range.js."""

from __future__ import annotations

import math
from collections.abc import Callable

from nicegui.element import Element
from nicegui.events import GenericEventArguments

#: A slider that is dragged tells its value so often, seconds.
THROTTLE_S = 0.05


class Range(Element, component="range.js"):
    """moved: called with each new value, which lies between low and high."""

    def __init__(
        self, label: str, low: float, high: float, step: float, value: float, words: str,
        moved: Callable[[float], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self._props.update(
            {"label": label, "low": low, "high": high, "step": step, "start": value, "words": words}
        )

        def move(event: GenericEventArguments) -> None:
            value = event.args
            if isinstance(value, int | float) and math.isfinite(value) and low <= value <= high:
                moved(float(value))

        self.on("move", move, throttle=THROTTLE_S)

    def say(self, words: str) -> None:
        """What the value means."""
        if self._props["words"] != words:
            self._props["words"] = words
