"""Whether a request comes from this machine itself: who sits here may start processes here."""

from __future__ import annotations

import contextlib
import ipaddress

from starlette.requests import Request

#: By these a proxy tells for whom it asks.
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def asks_from_here(request: Request) -> bool:
    """From a loopback address to a loopback name. What a proxy on this machine passes on comes from
    elsewhere: it came by another name, or the proxy says whom it speaks for."""
    if any(header in request.headers for header in _OF_PROXIES):
        return False
    name = (request.url.hostname or "").lower()
    asker = request.client.host if request.client else ""
    return _is_loopback(asker) and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False
