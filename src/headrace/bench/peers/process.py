"""The parent's side of a worker: start, ask, stop, notice a death.

A worker is stopped (SIGSTOP) while it is not asked anything, so that no pool of an idle engine
takes CPU from the one that is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from headrace.bench.peers.catalog import PeerEntry
from headrace.bench.peers.peer import CannotRun, Ids, Load, Measured

#: Longest wait for one answer, seconds; a load may convert a whole model.
TIMEOUT_S = 900.0
#: ggml would start a debugger when it aborts.
_QUIET = {"GGML_NO_BACKTRACE": "1"}


class WorkerFailed(Exception):
    """The engine raised, died or did not answer; the text is one sentence. alive tells whether
    it can still be asked."""

    def __init__(self, message: str, *, alive: bool) -> None:
        super().__init__(message)
        self.alive = alive


class WorkerProcess:
    """One engine in a child process. Use `with`: leaving kills the child.

    environment: added to the child's. timeout_s: of one answer.
    """

    def __init__(
        self,
        entry: PeerEntry,
        *,
        environment: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.entry = entry
        self._timeout_s = timeout_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "headrace.bench.peers.worker", entry.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **_import_path(), **_QUIET, **(environment or {})},
            bufsize=0,
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._child.pid

    # ---- what can be asked --------------------------------------------------------------------

    def load(self, load: Load) -> dict[str, str]:
        """See Peer.load; raises CannotRun or WorkerFailed, as all of these."""
        fields = {
            "model": os.fspath(load.model.absolute()),
            "num_threads": load.num_threads,
            "max_context": load.max_context,
            "num_sequences": load.num_sequences,
            "batch_context": load.batch_context,
        }
        facts: dict[str, str] = self.ask({"do": "load", **fields})["facts"]
        return facts

    def prefill(self, ids: Ids) -> Measured:
        return self._measure({"do": "prefill", "ids": ids})

    def decode(self, ids: Ids, n: int) -> Measured:
        return self._measure({"do": "decode", "ids": ids, "n": n})

    def batch(self, prompts: Sequence[Ids], n: int) -> Measured:
        return self._measure({"do": "batch", "prompts": prompts, "n": n})

    def _measure(self, request: dict[str, Any]) -> Measured:
        answer = self.ask(request)
        return Measured(float(answer["seconds"]), [int(t) for t in answer["tokens"]])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one request and waits for its answer; the child runs only in between."""
        self._signal(signal.SIGCONT)
        try:
            self._write(json.dumps(request).encode() + b"\n")
            answer = self._read()
        finally:
            self._signal(signal.SIGSTOP)
        if "cannot" in answer:
            raise CannotRun(str(answer["cannot"]))
        if "failed" in answer:
            raise WorkerFailed(f"{self.entry.title}: {answer['failed']}", alive=True)
        return answer

    def cpu_seconds(self) -> float:
        """CPU time the child has used so far, all its threads (Linux; elsewhere 0)."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends the child."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- pipes --------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        assert self._child.stdin is not None
        try:
            view = memoryview(data)
            while view:
                view = view[self._child.stdin.write(view) :]
        except OSError:
            raise self._death() from None

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        deadline = time.monotonic() + self._timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                self._child.kill()
                raise WorkerFailed(
                    f"{self.entry.title} did not answer within {self._timeout_s:.0f} s.",
                    alive=False,
                )
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise self._death()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self._child.kill()
            raise WorkerFailed(f"{self.entry.title} answered with no JSON object.", alive=False)
        return answer

    def _death(self) -> WorkerFailed:
        """How the child ended, with the last line it wrote."""
        try:
            code = self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self._errors.seek(0)
        last = last_words(self._errors.read().decode("utf-8", "replace"))
        said = f"; its last words: {last[:200]}" if last else ""
        return WorkerFailed(f"{self.entry.title} {how}{said}.", alive=False)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)


def last_words(text: str) -> str:
    """The line of a dead engine's standard error that says most: the last that sounds like a
    failure, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sign in ("assert", "error|exception|abort"):
        found = [line for line in lines if re.search(sign, line, re.I)]
        if found:
            return found[-1]
    return (lines or [""])[-1]


def _import_path() -> dict[str, str]:
    """Lets a child import what this process can, also where nothing is installed."""
    return {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
