"""The server to measure: its address, and the head of every request to it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace import __version__
from headrace.errors import UsageError

_OURS = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")


@dataclass(frozen=True, slots=True)
class Target:
    """prefix: a path before every route. headers: (name, value) sent with every request, the key
    among them; they never stand in a report. verify: check the TLS certificate."""

    tls: bool
    host: str
    port: int
    prefix: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    verify: bool = True

    @property
    def authority(self) -> str:
        """host:port"""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """On this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The bytes of a whole request."""
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {self.authority}",
            f"User-Agent: headrace-bench/{__version__}",
            "Accept-Encoding: identity",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")


def parse_target(
    base_url: str, *, api_key: str | None = None, headers: list[str] | None = None,
    verify: bool = True,
) -> Target:  # fmt: skip
    """--base-url, with or without the /v1 that clients are used to, and the headers to send. Raises
    UsageError."""
    try:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port == 0 or parts.scheme not in ("http", "https"):
        raise UsageError(f"--base-url must be http(s)://host[:port], not {base_url!r}.")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("--base-url takes host, port and path; give a key with --api-key.")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(
        tls=tls,
        host=_plain("--base-url", host),
        port=port or (443 if tls else 80),
        prefix=_plain("--base-url", prefix.replace(" ", "%20")),
        headers=_headers(api_key, headers or []),
        verify=verify,
    )


def _headers(api_key: str | None, given: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    if api_key:
        pairs.append(("Authorization", f"Bearer {_plain('--api-key', api_key)}"))
    for text in given:
        at = min((i for i in (text.find(":"), text.find("=")) if i > 0), default=-1)
        name, value = text[:at].strip(), text[at + 1 :].strip()
        if at < 0 or not name.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"--header must be NAME:VALUE or NAME=VALUE, not {text!r}.")
        if name.lower() in _OURS:
            raise UsageError(f"--header {name} is set by the load generator itself.")
        pairs.append((_plain("--header", name), _plain("--header", value)))
    return tuple(pairs)


def _plain(flag: str, text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise UsageError(f"{flag} must be printable ASCII.")
    return text
