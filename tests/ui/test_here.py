"""Who sits at this machine, and who only comes through something that runs on it."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from headrace.ui.door.here import asks_from_here


@pytest.mark.parametrize(
    ("asker", "host", "more", "here"),
    [
        ("127.0.0.1", "localhost:8080", {}, True),
        ("127.0.0.1", "127.0.0.1:8080", {}, True),
        ("::1", "[::1]:8080", {}, True),
        ("192.0.2.7", "localhost:8080", {}, False),
        ("192.0.2.7", "127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, False),
        ("127.0.0.1", "lab.example", {}, False),
        ("127.0.0.1", "192.0.2.1:8080", {}, False),
        ("127.0.0.1", "localhost.example", {}, False),
        ("127.0.0.1", "localhost", {"x-forwarded-for": "127.0.0.1"}, False),
        ("127.0.0.1", "localhost", {"forwarded": "for=127.0.0.1"}, False),
        ("127.0.0.1", "localhost", {"via": "1.1 proxy"}, False),
        (None, "localhost", {}, False),
    ],
)
def test_only_loopback_to_loopback_without_a_proxy_is_here(
    asker: str | None, host: str, more: dict[str, str], here: bool
) -> None:
    headers = [(name.encode(), value.encode()) for name, value in {"host": host, **more}.items()]
    scope = {
        "type": "http", "method": "GET", "scheme": "http", "path": "/ui/lab", "query_string": b"",
        "headers": headers, "server": ("127.0.0.1", 8080),
        "client": None if asker is None else (asker, 5000),
    }  # fmt: skip
    assert asks_from_here(Request(scope)) is here
