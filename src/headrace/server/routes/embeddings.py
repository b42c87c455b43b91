"""POST /v1/embeddings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.intake.embedding import read_embedding
from headrace.server.submit import submit


async def embeddings(request: Request) -> Response:
    """A vector for each input, normalised."""
    return await submit(request, read_embedding)
