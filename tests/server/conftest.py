"""Servers that several tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_server import LiveServer, serving


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LiveServer]:
    with serving("smollm2-135m", "--max-model-len", "1024") as server:
        yield server
