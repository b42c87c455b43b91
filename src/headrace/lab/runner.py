"""One run: predict → check → measure → verdict → files.

Files appear whole: everything is written to a directory beside the final one, which then takes its
place; the result that was there before is kept as NAME.previous. What a killed run left beside it
goes with the next one: a run holds a lock on its directory as long as it lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from headrace.errors import UsageError
from headrace.formats.fetching import Reporter
from headrace.lab.experiment import Experiment
from headrace.lab.findings_page import findings_page
from headrace.lab.lab import Lab, Settings
from headrace.lab.progress import Listener, Progress
from headrace.lab.result import FILE, Result, make_result
from headrace.lab.values import Findings


def run(
    experiment: Experiment,
    settings: Settings,
    out: Path,
    *,
    listener: Listener = lambda report: None,
    reporter: Reporter | None = None,
) -> Result:
    """Runs an experiment into out/NAME. A failed check is a result, too: `passed` is false and
    nothing was measured. Raises UsageError for a fault that its check does not look for, for a
    model where it makes its own, and whatever the experiment raises; then no file changes."""
    if settings.inject is not None and settings.inject not in experiment.faults:
        known = ", ".join(experiment.faults) or "none"
        raise UsageError(
            f"The check of {experiment.name} does not look for the fault {settings.inject}; it "
            f"looks for {known}."
        )
    if settings.model is not None and experiment.default_model is None:
        raise UsageError(f"{experiment.name} makes its own models; leave --model away.")
    with _work_directory(out, experiment.name) as work:
        expected_s = experiment.quick_s if settings.quick else experiment.full_s
        progress = Progress(experiment.name, expected_s, listener)
        lab = Lab(settings, work, progress, reporter, experiment.default_model)
        with lab.held:
            result = _run(experiment, lab)
            _replace(work, out / experiment.name)
            for directory in lab.spent:
                shutil.rmtree(directory, ignore_errors=True)
        return result


def _run(experiment: Experiment, lab: Lab) -> Result:
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    settings = lab.settings
    if settings.text is not None:
        _ = lab.text  # a file that is no text is told before anything takes time
    lab.tell("predicting")
    predictions = experiment.predict(lab)
    keys = [p.key for p in predictions]
    assert len(set(keys)) == len(keys), f"{experiment.name}: a key is predicted twice: {keys}"
    lab.write_json(
        "prediction.json",
        {"written": datetime.now(UTC).isoformat(timespec="seconds"),
         "predictions": [asdict(p) | {"kind": p.kind.value} for p in predictions]},
    )  # fmt: skip
    with lab.stage("checking", experiment.check_share):
        checks = experiment.check(lab)
    findings: Findings | None = None
    if checks and all(check.passed for check in checks):
        with lab.stage("measuring", 1 - experiment.check_share):
            findings = experiment.measure(lab, {p.key: p for p in predictions})
        findings.figures = findings.figures or lab.figures
    result = make_result(
        experiment,
        quick=settings.quick,
        inject=settings.inject,
        predictions=predictions,
        checks=checks,
        findings=findings,
        conditions=lab.conditions(),
        started=started,
        seconds=time.monotonic() - clock,
    )
    lab.write_json(FILE, result.data)
    (lab.out / "findings.md").write_text(findings_page(result), encoding="utf-8")
    return result


@contextlib.contextmanager
def _work_directory(out: Path, name: str) -> Iterator[Path]:
    """A new directory in `out` for one run, locked, and gone at the end. Raises UsageError where
    `out` cannot be written, or is full by now."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _turn(out):
            _sweep(out, name)
            work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=out))
            alive = os.open(work, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(alive, fcntl.LOCK_EX)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}; name another directory.") from None
    try:
        yield work
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise UsageError(
            f"The run cannot be written below {out}: {error.strerror}; name another --out."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(alive)


def _sweep(out: Path, name: str) -> None:
    """Removes what killed runs of this experiment left: directories that nobody holds."""
    for left in out.glob(f".{name}.????????"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or not left.is_dir():
                continue
            handle = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def _replace(work: Path, final: Path) -> None:
    """Puts `work` in the place of `final`, which becomes NAME.previous."""
    work.chmod(0o755)
    previous = final.with_name(f"{final.name}.previous")
    with _turn(final.parent):
        if os.path.lexists(final):
            if previous.is_symlink() or previous.is_file():
                previous.unlink()
            shutil.rmtree(previous, ignore_errors=True)
            final.rename(previous)
        work.rename(final)


@contextlib.contextmanager
def _turn(out: Path) -> Iterator[None]:
    """Another run that begins or ends in `out` now waits for its turn."""
    turn = os.open(out, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)
