"""What holds for all rooms' tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_skipped: list[str] = []


def pytest_configure() -> None:
    """Whoever starts the suite in the background leaves Ctrl-C ignored, and the commands that tests
    start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if importlib.util.find_spec("hypothesis") is not None:  # the clients' environment has none
        _choose_examples()


def _choose_examples() -> None:
    """Hypothesis takes the same examples in every run, and however long a machine needs for one.
    `make test ARGS=--hypothesis-profile=explore` takes others each time."""
    from hypothesis import HealthCheck, settings

    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("explore", patient)
    settings.register_profile("same", patient, derandomize=True)
    settings.load_profile("same")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes skipped tests; see pytest_sessionfinish."""
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes modules that skip themselves (a package they need is missing)."""
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With HEADRACE_NO_SKIPS=1 (as `make test` runs) a skipped test is a failure: an oracle that
    did not run has shown nothing."""
    if _skipped and os.environ.get("HEADRACE_NO_SKIPS") == "1":
        print(f"\nskipped, which counts as failed: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def save_dir() -> Iterator[Path]:
    """A directory in memory where there is one: to make a file last (fsync) may take a minute on a
    busy disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tiny models run faster on one thread of torch than on several that wait for each other."""
    if item.get_closest_marker("torch") is not None:
        import torch

        torch.set_num_threads(1)
