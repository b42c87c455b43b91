"""What must stay as it was while something else happens to a server."""

from __future__ import annotations

import re
import threading
from typing import Any, ClassVar

from live_server import LiveServer


def used_blocks(server: LiveServer) -> float:
    found = re.search(r"kv_blocks_used\{[^}]*\} (\S+)", server.get("/metrics").text)
    assert found is not None
    return float(found[1])


class Neighbour:
    """An honest client beside all this: its answers must stay what they were alone."""

    BODY: ClassVar[dict[str, Any]] = {
        "prompt": "The three colours of the flag are", "max_tokens": 24, "seed": 11,
        "temperature": 0.9, "logprobs": 2, "ignore_eos": True,
    }  # fmt: skip

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._alone = self._ask()
        self._stop = threading.Event()
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=self._run)

    def _ask(self) -> Any:
        return self._server.json("/v1/completions", self.BODY)["choices"]

    def _run(self) -> None:
        self._answers.append(self._ask())
        while not self._stop.is_set():
            self._answers.append(self._ask())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._answers, "the neighbour was not answered"
        assert all(answer == self._alone for answer in self._answers)
