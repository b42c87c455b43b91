"""POST /v1/responses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.intake.response import read_response
from headrace.server.submit import submit


async def responses(request: Request) -> Response:
    """Answers a conversation, in the form of OpenAI's Responses API. Nothing is stored."""
    return await submit(request, read_response)
