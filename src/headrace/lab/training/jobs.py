"""Several trainings at once, each in a process of its own with one thread.

Small models gain little from two threads each; as many trainings as there are cores gain all, and
one thread gives the same bits on every machine of a kind, however many cores it has.

    run_jobs ── job as JSON ──▶ python -m headrace.lab.training.worker ── JSON lines ──▶ run_jobs

A job that is interrupted goes on from its checkpoint when it is run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from headrace.errors import HeadraceError
from headrace.lab.training.settings import Settings

#: A job's checkpoint, in its directory.
STATE = "state.safetensors"
#: Memory that a step frees is kept for the next one: without this, glibc maps and clears the
#: largest tensors anew in every step, which costs a tenth of the time.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}


@dataclass(frozen=True, slots=True)
class Job:
    """One training. model: the words of a config.json. data: {"kind": "text", "path": of
    TextTokens.save, and TextData's sizes} or {"kind": "recall", and RecallData's sizes}; with its
    seed. seed: of the first weights. directory: where the checkpoint lies (state.safetensors)."""

    name: str
    model: Mapping[str, object]
    data: Mapping[str, object]
    settings: Settings
    seed: int
    directory: Path

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"directory": str(self.directory)})


@dataclass(frozen=True, slots=True)
class Done:
    """What a job gave. history: [step, training loss]. seconds: of this run of it; resumed: whether
    an earlier one had begun. The weights are in the job's checkpoint."""

    name: str
    loss: float
    num_right: int
    num_scored: int
    history: list[tuple[int, float]]
    seconds: float
    num_tokens: int
    resumed: bool


#: Told after every report of a job: its name, steps done, steps in all, tokens per second (0 for
#: one that an earlier run had finished).
OnProgress = Callable[[str, int, int, float], None]


def run_jobs(
    jobs: Sequence[Job], *, workers: int, on_progress: OnProgress = lambda *_: None
) -> dict[str, Done]:
    """All jobs, `workers` at a time, in order → results by name. on_progress: called from several
    threads, never at once. Raises HeadraceError with what the first failing job said; the others
    are ended then, and by Ctrl-C, with their checkpoints kept."""
    running: set[subprocess.Popen[str]] = set()
    lock, stop = threading.Lock(), threading.Event()

    def tell(name: str, step: int, steps: int, speed: float) -> None:
        with lock:
            on_progress(name, step, steps, speed)

    def one(job: Job) -> Done | None:
        with tempfile.TemporaryFile("w+") as complaints:
            with lock:
                if stop.is_set():
                    return None
                process = _start(job, complaints)
                running.add(process)
            try:
                return _follow(process, complaints, job, tell)
            finally:
                with lock:
                    running.discard(process)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(one, job) for job in jobs]
        try:
            found = [future.result() for future in as_completed(futures)]
        except BaseException:
            with lock:
                stop.set()
                for process in running:
                    process.kill()
            raise
    return {done.name: done for done in found if done is not None}


def _start(job: Job, complaints: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.lab.training.worker", job.to_json()],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True,
        env=os.environ | _KEEP_MEMORY | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def _follow(
    process: subprocess.Popen[str], complaints: IO[str], job: Job, tell: OnProgress
) -> Done:
    """Reads a worker's lines to its end."""
    done: Done | None = None
    reached = 0
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise HeadraceError(message["error"])
            if "step" in message:
                reached = message["step"]
                tell(job.name, reached, message["steps"], message["tok_per_s"])
            else:
                history = [(int(step), float(loss)) for step, loss in message.pop("history")]
                done = Done(name=job.name, history=history, **message)
    if done is None:
        complaints.seek(0)
        last = complaints.read().strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise HeadraceError(f"Training {job.name} ended early: {last[0]}")
    if reached < job.settings.steps:  # an earlier run had finished it
        tell(job.name, job.settings.steps, job.settings.steps, 0.0)
    return done
