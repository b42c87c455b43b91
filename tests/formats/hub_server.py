"""A local HTTP server that stands in for the Hub: the routes huggingface_hub uses, real transfers.

It serves one repository from memory, honours Range (so that resuming can be seen), can be told to
break off a transfer or to answer nothing, and records every request.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """repo: "owner/name". files: name -> content. break_after: bytes before each transfer is cut,
    for the next `breaks` transfers. silent: answer nothing at all. lie: claimed sha256 by name."""

    repo: str
    files: dict[str, bytes]
    break_after: int = 0
    breaks: int = 0
    silent: threading.Event = field(default_factory=threading.Event)
    lie: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""


def _sha256(hub: FakeHub, name: str) -> str:
    return hub.lie.get(name) or hashlib.sha256(hub.files[name]).hexdigest()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None: ...

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("Range")))
            if hub.silent.is_set():
                hub.silent.wait()
                threading.Event().wait(8)
                return
            prefix = f"/{hub.repo}/resolve/"
            if path.startswith(f"/api/models/{hub.repo}"):
                self._json(self._model_info())
            elif path.startswith(prefix) and path[len(prefix) :].split("/", 1)[1] in hub.files:
                self._file(path[len(prefix) :].split("/", 1)[1], body=body)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _model_info(self) -> dict[str, Any]:
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "lfs": {"sha256": _sha256(hub, name), "size": len(data), "pointerSize": 130},
                }
                for name, data in hub.files.items()
            ]
            return {"id": hub.repo, "modelId": hub.repo, "sha": COMMIT, "siblings": siblings,
                    "private": False, "tags": [], "downloads": 0, "likes": 0}  # fmt: skip

        def _json(self, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _file(self, name: str, *, body: bool) -> None:
            data = hub.files[name]
            span = self.headers.get("Range")
            start = int(span.removeprefix("bytes=").split("-")[0]) if span else 0
            self.send_response(206 if span else 200)
            if span:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("ETag", f'"{_sha256(hub, name)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if not body:
                return
            rest = data[start:]
            if hub.breaks > 0:
                hub.breaks -= 1
                self.wfile.write(rest[: hub.break_after])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(rest)

    return Handler


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Run the server on a free port; hub.url is its endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
