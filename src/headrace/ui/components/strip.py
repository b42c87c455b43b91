"""Strip: a text as a row of tokens, coloured by how likely each was; one can be picked.

Tokens are collected and sent in batches, once a tick; the browser keeps them. See strip.js.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from headrace.ui.facts.traces import Token

#: Borders of the eight levels: of 1 − probability, and of the entropy in nats.
_UNLIKELY = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)
_ENTROPY = (0.1, 0.3, 0.7, 1.2, 2.0, 3.0, 4.5)
#: More tokens than this in one message make the browser wait.
_BATCH = 500


class Strip(Element, component="strip.js"):
    """picked: called with the index of the token that a person selects."""

    def __init__(self, label: str, picked: Callable[[int], None], by: str = "p") -> None:
        super().__init__()
        self._props["label"] = label
        self._props["by"] = by
        self._waiting: list[list[Any]] = []
        self._num = 0

        def pick(event: GenericEventArguments) -> None:
            if isinstance(event.args, int) and 0 <= event.args < self._num:
                picked(event.args)

        self.on("pick", pick)

    def add(self, token: Token) -> None:
        p, h = token.probability, token.entropy
        says = [
            f"{token.text!r}, token {token.id}, number {self._num + 1}",
            "chosen by you" if token.forced else "",
            f"probability {p:.3g}" if p is not None else "probability not told",
            f"entropy {h:.2f} nats",
        ]
        level = 7 if p is None else bisect_left(_UNLIKELY, 1 - p)
        self._waiting.append(
            [
                token.text,
                level,
                bisect_left(_ENTROPY, h),
                ", ".join(filter(None, says)),
                int(token.forced),
            ]
        )
        self._num += 1

    def flush(self) -> bool:
        """Sends what came since; whether there was something."""
        batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
        if batch:
            self.run_method("append", batch)
        return bool(batch)

    def colour_by(self, quantity: str) -> None:
        """ "p": probability, "h": entropy."""
        if self._props["by"] != quantity:
            self._props["by"] = quantity

    def select(self, index: int) -> None:
        """Marks a token, or none (−1), without telling."""
        self.run_method("select", index, False)

    def empty(self) -> None:
        self._waiting.clear()
        self._num = 0
        self.run_method("clear")
