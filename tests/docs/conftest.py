"""The server that the pages speak to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from live_server import LiveServer, serving


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    with serving("smollm2-135m", "--max-model-len", "2048", step_limits=True) as running:
        yield running
