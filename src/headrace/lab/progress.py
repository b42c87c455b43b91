"""How far a run has come, and how much time is left. Knows no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: From here on the run's own pace counts more than what was expected.
_TRUST = 0.15


@dataclass(frozen=True, slots=True)
class Report:
    """share: done of the run, 0 … 1. left_s: estimate."""

    experiment: str
    share: float
    left_s: float
    text: str


Listener = Callable[[Report], None]


class Progress:
    """Stages with shares of one run. expected_s: how long it should take."""

    def __init__(self, experiment: str, expected_s: float, listener: Listener) -> None:
        self._experiment = experiment
        self._expected_s = expected_s
        self._listener = listener
        self._started_s = time.monotonic()
        self._from, self._to = 0.0, 1.0
        self._text = ""
        self._share = 0.0

    @contextmanager
    def stage(self, text: str, share: float) -> Iterator[None]:
        """A part of the enclosing stage (at first: of the run), from where the last one ended."""
        outer = self._from, self._to
        start = self._share
        end = min(self._to, start + share * (outer[1] - outer[0]))
        self._from, self._to = start, end
        self.tell(text)
        try:
            yield
            self._share = end  # not where it broke off
        finally:
            self._from, self._to = outer
        self._send()

    def tell(self, text: str, done: float | None = None) -> None:
        """What goes on now; done: of the current stage, 0 … 1."""
        self._text = text
        if done is not None:
            reached = self._from + min(max(done, 0.0), 1.0) * (self._to - self._from)
            self._share = max(self._share, reached)
        self._send()

    def _send(self) -> None:
        spent = time.monotonic() - self._started_s
        left = max(self._expected_s - spent, 0.0)
        if self._share > 0:
            paced = spent * (1 - self._share) / self._share
            weight = min(self._share / _TRUST, 1.0)
            left = weight * paced + (1 - weight) * left
        self._listener(Report(self._experiment, self._share, left, self._text))
