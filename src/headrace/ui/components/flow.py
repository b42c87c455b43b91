"""Flow: text that grows while it is generated, sent in pieces of at most four a second."""

from __future__ import annotations

from nicegui.element import Element


class Flow(Element, component="flow.js"):
    """Plain text; `add` collects, `flush` sends what came since, once a tick."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[str] = []

    def add(self, text: str) -> None:
        self._waiting.append(text)

    def flush(self) -> bool:
        """Whether there was something to send."""
        text = "".join(self._waiting)
        self._waiting.clear()
        if text:
            self.run_method("append", text)
        return bool(text)

    def empty(self) -> None:
        """Takes away what is there."""
        self._waiting.clear()
        self.run_method("clear")
