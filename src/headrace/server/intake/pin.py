"""Pins: a prefix to be computed, where it is not cached, and kept."""

from __future__ import annotations

from typing import Any

from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams
from headrace.formats.tokenizer import check_ids
from headrace.server.conversation import template_options
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields
from headrace.server.intake.common import Intake, check_served, make_jobs
from headrace.server.protocol.cache import PinRequest
from headrace.server.protocol.common import parse
from headrace.server.render.pin import PinRenderer
from headrace.server.tool_use import asked_tools, dialogue

#: Longest life of a pin that has an end, seconds.
MAX_TTL_S = 366 * 86400.0
_PROMPT_ONLY = SamplingParams(max_tokens=0)


async def read_pin(door: Door, values: dict[str, Any], arrived_s: float) -> Intake:
    """See intake.common.Reader."""
    body = parse(PinRequest, values)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    ttl_s = body.ttl
    if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:
        raise invalid(
            f"ttl = {ttl_s} is out of range: more than 0 s, at most {MAX_TTL_S:,.0f}.", "ttl"
        )
    door.check_pin(0)  # before the work of tokenizing
    ids = await _ids(door, body)
    door.check_pin(len(ids))
    [job] = make_jobs(door, [ids], _PROMPT_ONLY, body, arrived_s)
    renderer = PinRenderer()

    def pin(engine: Engine) -> None:
        kept = engine.cache.pin(job.prompt, salt=job.cache_salt, ttl_s=ttl_s)
        renderer.pinned(kept, ttl_s)

    job.at_end = pin
    return Intake([job], renderer, body, ignored)


async def _ids(door: Door, body: PinRequest) -> list[int]:
    """Of what is to be pinned. Raises ApiError or HeadraceError."""
    given = [name for name in ("prompt", "messages", "tokens") if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid("One of prompt, messages and tokens is needed, and only one.", "prompt")
    if body.tokens is not None:
        check_ids(body.tokens, door.texts.tokenizer)
        return body.tokens
    if body.prompt is not None:
        add_special = body.add_special_tokens is not False
        [ids] = await door.texts.encode([body.prompt], add_special=add_special)
        return ids
    assert body.messages is not None
    template = door.texts.template(body.chat_template)
    talk = await dialogue(door, template, body.messages, asked_tools(body.tools, None, None))
    options = template_options(body) | {"add_generation_prompt": bool(body.add_generation_prompt)}
    return await door.texts.encode_chat(talk.messages, talk.template, tools=talk.tools, **options)
