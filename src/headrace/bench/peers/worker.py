"""The child's side: one engine in a process of its own, answering JSON lines.

    python -m headrace.bench.peers.worker NAME

    → {"do": "load", "model": "…", "num_threads": 2, "max_context": 577, …}
    ← {"facts": {"version": "…", …}}
    → {"do": "prefill", "ids": […]}           ← {"seconds": 0.1, "tokens": [42]}
    → {"do": "decode", "ids": […], "n": 64}   ← {"seconds": 0.3, "tokens": […]}
    → {"do": "batch", "prompts": [[…]], "n": 64}

A line that cannot be answered gives {"cannot": "…"} (this engine cannot do this) or
{"failed": "…"} (something broke); the worker goes on. It ends with its standard input. What the
engine itself prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.bench.peers.catalog import HEADRACE, PEERS, PeerEntry
from headrace.bench.peers.peer import CannotRun, Load, Measured, Peer

MEASUREMENTS = ("prefill", "decode", "batch")
_PR_SET_PDEATHSIG = 1


class Worker:
    """Answers requests for one engine, which is imported when it is asked to load."""

    def __init__(self, entry: PeerEntry) -> None:
        self._entry = entry
        self._peer: Peer | None = None

    def answer(self, line: str) -> dict[str, Any]:
        """One request → its answer; never raises for what a request or an engine does."""
        try:
            request = json.loads(line)
            what = request.pop("do")
            if what == "load":
                request["model"] = Path(request["model"])
                self._peer = self._entry.make()
                return {"facts": self._peer.load(Load(**request))}
            if what not in MEASUREMENTS:
                return {"failed": f"a worker knows no {what!r}"}
            if self._peer is None:
                return {"failed": "nothing is loaded"}
            measured: Measured = getattr(self._peer, what)(**request)
            return {"seconds": measured.seconds, "tokens": measured.tokens}
        except CannotRun as error:
            return {"cannot": str(error)}
        except Exception as error:
            text = " ".join(str(error).split())
            return {"failed": f"{type(error).__name__}: {text}"[:500]}


def main() -> None:
    """Entry point of the child process."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not reach the pipe
    worker = Worker({HEADRACE.name: HEADRACE, **PEERS}[sys.argv[1]])
    for line in sys.stdin:
        print(json.dumps(worker.answer(line)), file=answers, flush=True)
    answers.close()
    os._exit(0)  # engines have been seen to crash in their own destructors


def _die_with_parent() -> None:
    """A stopped child would outlive a parent that was killed (Linux; elsewhere nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
