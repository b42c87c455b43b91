"""The answer of /v1/embeddings: one vector per input, as numbers or as base64."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from headrace.server.job import Job
from headrace.server.render.answer import dump, timings
from headrace.server.render.unstreamed import Unstreamed


class EmbeddingRenderer(Unstreamed):
    """encoded: base64 of the float32 values, little-endian, instead of numbers."""

    def __init__(self, model: str, encoded: bool) -> None:
        self._model = model
        self._encoded = encoded

    @property
    def id(self) -> str | None:
        return None

    def whole(self, jobs: Sequence[Job]) -> bytes:
        num_tokens = sum(len(job.prompt) for job in jobs)
        return dump(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": self._vector(job)}
                    for index, job in enumerate(jobs)
                ],
                "model": self._model,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
                "timings": timings(jobs),
            }
        )

    def _vector(self, job: Job) -> Any:
        assert job.request is not None
        vector = job.request.output().embedding
        assert vector is not None, "the request has not ended well"
        if self._encoded:
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()
