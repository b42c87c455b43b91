"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.intake.completion import read_completion
from headrace.server.submit import submit


async def completions(request: Request) -> Response:
    """Continues one or several prompts."""
    return await submit(request, read_completion)
