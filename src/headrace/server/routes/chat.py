"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.intake.chat import read_chat
from headrace.server.submit import submit


async def chat_completions(request: Request) -> Response:
    """Answers a conversation."""
    return await submit(request, read_chat)
