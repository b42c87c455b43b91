"""`headrace ui --url URL`: the dashboard of a server that runs already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from headrace.errors import UsageError

LabDir = Annotated[
    Path,
    typer.Option(
        "--lab-dir", metavar="DIR", help="Results of experiments, as --out of headrace lab run."
    ),
]


def ui(
    url: Annotated[
        str, typer.Option("--url", help="The server, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 = any free one.", min=0, max=65535)] = 8080,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name by which browsers may call it, besides localhost, this machine's name and "
            "addresses; may be repeated.",
            show_default=False,
        ),
    ] = None,
    lab_dir: LabDir = Path("lab-results"),
) -> None:
    """Open a dashboard over a running server, in the browser. Where the server wants a key, the
    pages ask for it."""
    if not _is_url(url):
        raise UsageError(f"--url must look like http://127.0.0.1:8000, not {url!r}.")
    need_ui_extra()
    from headrace.ui.serve import serve

    serve(url, host, port, allow_host or (), lab_dir, _tell)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return named and url.isprintable() and "@" not in parts.netloc  # pages show it to anybody
    except ValueError:
        return False


def _tell(address: str) -> None:
    typer.echo(f"The dashboard is at {address}", err=True)


def need_ui_extra() -> None:
    """Raises UsageError when the libraries of the dashboard are missing."""
    try:
        import nicegui  # noqa: F401
    except ImportError as error:
        raise UsageError(f"The dashboard needs {error.name}: pip install 'headrace[ui]'.") from None
