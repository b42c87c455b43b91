"""What answers that are never streamed have in common: no chunks."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.outputs import Delta
from headrace.server.job import Job


class Unstreamed:
    """The streaming members of a renderer whose answer comes whole."""

    def start(self) -> bytes:
        return b""

    def chunk(self, job: Job, delta: Delta) -> bytes:
        return b""

    def end(self, jobs: Sequence[Job]) -> bytes:
        return b""
