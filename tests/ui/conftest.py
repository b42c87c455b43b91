"""One server, one dashboard and one browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from live_server import LiveServer, serving

if TYPE_CHECKING:
    from browser import Browser


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    with serving("smollm2-135m", "--max-model-len", "4096", step_limits=True) as server:
        yield server


@pytest.fixture(scope="session")
def dashboard(server: LiveServer) -> Iterator[str]:
    from browser import showing

    with showing(server.url) as url:
        yield url


@pytest.fixture(scope="session")
def _browser() -> Iterator[Browser]:
    from browser import Browser

    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(_browser: Browser) -> Iterator[Browser]:
    """Clean at the end of each test: no error in the console, no request that left the machine."""
    _browser.leave()
    _browser.must_be_clean(allowed="")
    yield _browser
    _browser.must_be_clean(allowed="")
