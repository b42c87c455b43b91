"""Embeddings: texts to become vectors."""

from __future__ import annotations

from typing import Any

from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields
from headrace.server.intake.common import Intake, check_served, encode_all, make_jobs, prompts_of
from headrace.server.protocol.common import CacheFields, parse
from headrace.server.protocol.embedding import EmbeddingRequest
from headrace.server.render.embedding import EmbeddingRenderer

#: Nothing is drawn.
_PROMPT_ONLY = SamplingParams(max_tokens=0)


async def read_embedding(door: Door, values: dict[str, Any], arrived_s: float) -> Intake:
    """See intake.common.Reader."""
    body = parse(EmbeddingRequest, values)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    if body.encoding_format not in (None, "float", "base64"):
        raise invalid("encoding_format must be float or base64.", "encoding_format")
    if body.dimensions is not None and body.dimensions != door.hidden_size:
        raise invalid(
            f"dimensions = {body.dimensions} is not supported: this model's vectors have "
            f"{door.hidden_size}.",
            "dimensions",
        )
    pooling = PoolingParams() if body.pooling is None else PoolingParams(body.pooling)
    prompts = prompts_of(body.input, "input")
    ids = await encode_all(door, prompts, body.add_special_tokens is not False)
    jobs = make_jobs(door, ids, _PROMPT_ONLY, body, arrived_s, pooling=pooling)
    ignored += [field for field in CacheFields.model_fields if field in values and field != "model"]
    name = body.model or door.settings.model_name
    return Intake(jobs, EmbeddingRenderer(name, body.encoding_format == "base64"), body, ignored)
