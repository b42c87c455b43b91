"""LabDesk: runs experiments, one at a time, each in a process of its own; reads what they wrote.

Knows the lab only by its command line and its files: `headrace lab list --json`, `lab run`, the
lines of progress on stderr, and DIR/NAME/result.json with its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UsageError

#: What `lab run` says while it goes on: "headrace: NAME  37 %  0:40 left  text".
PROGRESS = re.compile(r"headrace: (\S+)\s+(\d{1,3}) %\s+(\d+):(\d\d) left\s+(.*)")
#: A model by its name; a page names no files.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_FIGURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,80}\.png")
_PNG = b"\x89PNG\r\n\x1a\n"
MAX_RESULT_BYTES = 16 << 20
MAX_FIGURE_BYTES = 4 << 20
#: A run that is told to stop may take so long to clean up, seconds.
STOP_S = 5.0
#: Result format that is known here (docs/lab/index.md).
FORMAT = 1
#: Of a server beside; no run needs them.
_SECRETS = ("HEADRACE_API_KEY",)


@dataclass(slots=True)
class Run:
    """One run, going on or ended. model: None = the experiment's own. is_quick: with small sizes.
    share: done, 0 … 1. problem: what it said when it failed. wrote: whether a result came of it, as
    of a check that fails, too."""

    name: str
    fault: str | None = None
    model: str | None = None
    is_quick: bool = True
    share: float = 0.0
    left_s: float | None = None
    text: str = "starting"
    last_line: str = ""
    status: int | None = None
    stopped: bool = False
    wrote: bool = True

    @property
    def ended(self) -> bool:
        return self.status is not None

    @property
    def problem(self) -> str | None:
        """One sentence where there is no result of it."""
        if not self.ended or self.stopped or (self.status in (0, 1) and self.wrote):
            return None
        return (
            self.last_line.removeprefix("headrace: ") or f"the run ended with status {self.status}"
        )

    def hear(self, line: str) -> None:
        """Takes one line of its stderr."""
        found = PROGRESS.fullmatch(line)
        if found is None:
            self.last_line = line[:500] or self.last_line
            return
        self.share = min(int(found[2]) / 100, 1.0)
        self.left_s = 60.0 * int(found[3]) + int(found[4])
        self.text = found[5][:200]


class LabDesk:
    """directory: where results lie, as `--out` of `lab run`. All pages share it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run: Run | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._experiments: tuple[Mapping[str, Any], ...] = ()
        self._listing = asyncio.Lock()
        self._reporting = asyncio.Lock()

    async def experiments(self) -> tuple[Mapping[str, Any], ...]:
        """As `headrace lab list --json` has them; asked once. Raises UsageError."""
        async with self._listing:
            if not self._experiments:
                process = await self._start("list", "--json")
                out, err = await process.communicate()
                if process.returncode:
                    lines = err.decode("utf-8", "replace").strip().splitlines()
                    said = lines[-1] if lines else f"status {process.returncode}"
                    raise UsageError(f"The lab cannot list its experiments: {said}")
                self._experiments = tuple(json.loads(out))
            return self._experiments

    @property
    def busy(self) -> bool:
        return self.run is not None and not self.run.ended

    async def begin(
        self, name: str, fault: str | None = None, model: str | None = None, quick: bool = True
    ) -> None:
        """Starts a run. Raises UsageError while another goes on, and for unknown names."""
        known = {one["name"]: one for one in await self.experiments()}
        if name not in known:
            raise UsageError(f"There is no experiment {name!r}.")
        if fault is not None and fault not in known[name]["faults"]:
            raise UsageError(f"The check of {name} does not look for {fault!r}.")
        if model is not None and not _MODEL.fullmatch(model):
            raise UsageError("A model is named here as in `headrace pull`, such as smollm2-135m.")
        if self.run is not None and not self.run.ended:
            raise UsageError(f"{self.run.name} is still running; one goes on at a time.")
        self.run = Run(name, fault, model, quick)
        self._process = None
        self._task = asyncio.create_task(self._carry_out(self.run))  # though the page may be closed

    async def stop(self) -> None:
        """Ends the run, if one goes on; what it had written so far goes with it."""
        run, task = self.run, self._task
        if run is None or run.ended or task is None:
            return
        run.stopped, run.text = True, "stopping"
        _signal(self._process, signal.SIGINT)
        done, _ = await asyncio.wait([task], timeout=STOP_S)
        if not done:
            _signal(self._process, signal.SIGKILL)
            await asyncio.wait([task])

    async def report(self) -> bytes:
        """All results as one page, as `headrace lab report` makes it. Raises UsageError."""
        async with self._reporting:
            with tempfile.TemporaryDirectory(prefix="headrace-report-") as directory:
                page = Path(directory) / "report.html"
                process = await self._start("report", str(self.directory), "-o", str(page))
                _, err = await process.communicate()
                if process.returncode:
                    lines = err.decode("utf-8", "replace").strip().splitlines()
                    raise UsageError(lines[-1] if lines else "The report could not be made.")
                return await asyncio.to_thread(page.read_bytes)

    def result(self, name: str) -> dict[str, Any] | None:
        """The newest result of an experiment; None where there is none. Raises UsageError for a
        file that is none, or of another version."""
        data = self._read(name, "result.json", MAX_RESULT_BYTES)
        if data is None:
            return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UsageError(
                f"{self.directory / name}/result.json is no result of this version; run it again."
            )
        return found

    def figure(self, name: str, file: str) -> bytes | None:
        """A picture of a result; None for whatever is none, or lies elsewhere."""
        if not _FIGURE.fullmatch(file):
            return None
        data = self._read(name, file, MAX_FIGURE_BYTES)
        return data if data is not None and data.startswith(_PNG) else None

    def _read(self, name: str, file: str, most: int) -> bytes | None:
        """A small regular file of a result's own directory; links do not lead out of it."""
        if not _NAME.fullmatch(name):
            return None
        try:
            root = self.directory.resolve()
            path = (root / name / file).resolve()
            if path.parent != root / name or not path.is_file() or path.stat().st_size > most:
                return None
            return path.read_bytes()
        except OSError:
            return None

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in os.environ.items() if key not in _SECRETS}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace", "lab", *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )  # fmt: skip

    async def _carry_out(self, run: Run) -> None:
        """From start to end of a run's process."""
        more = ["--quick"] if run.is_quick else []
        more += ["--inject", run.fault] if run.fault is not None else []
        more += ["--model", run.model] if run.model is not None else []
        before = self._stamp(run.name)
        try:
            process = self._process = await self._start(
                "run", run.name, "--out", str(self.directory), *more
            )
        except OSError as error:
            run.status, run.last_line = 2, f"it cannot be started: {error.strerror}"
            return
        if run.stopped:  # while it started
            _signal(process, signal.SIGINT)
        status = await self._attend(run, process)
        run.wrote = self._stamp(run.name) != before
        run.status = status

    def _stamp(self, name: str) -> tuple[int, int] | None:
        """Tells one result of an experiment from the next."""
        with contextlib.suppress(OSError):
            found = (self.directory / name / "result.json").stat()
            return found.st_ino, found.st_mtime_ns
        return None

    async def _attend(self, run: Run, process: asyncio.subprocess.Process) -> int:
        """Hears a run out; its exit status."""

        async def listen() -> None:
            assert process.stderr is not None
            while True:
                try:
                    line = await process.stderr.readline()
                except ValueError:  # a line without end; what follows is read on
                    continue
                if not line:
                    return
                run.hear(line.decode("utf-8", "replace").strip())

        async def drain() -> None:
            assert process.stdout is not None
            while await process.stdout.read(1 << 16):
                pass

        await asyncio.gather(listen(), drain())
        return await process.wait()


def _signal(process: asyncio.subprocess.Process | None, number: int) -> None:
    """To the run and all that it started, if it has."""
    if process is None or process.returncode is not None:  # its id may be another's by now
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
