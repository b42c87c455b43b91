"""What a text is to the model: /tokenize, /detokenize, /tokenizer_info, /apply-template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.formats.chat_template import special_tokens
from headrace.formats.tokenizer import Tokenizer, check_ids
from headrace.server.context import json_body, open_door
from headrace.server.conversation import template_options
from headrace.server.door import Door
from headrace.server.errors import invalid
from headrace.server.fields import ignored_fields
from headrace.server.intake.common import check_served
from headrace.server.protocol.common import parse
from headrace.server.protocol.tokens import (
    ApplyTemplateRequest,
    ConversationFields,
    DetokenizeRequest,
    TokenizeRequest,
)
from headrace.server.render.answer import dump
from headrace.server.submit import ignored_header
from headrace.server.tool_use import asked_tools, dialogue

#: Longest text to tokenize: about a second of a core, some hundred bytes per token meanwhile.
MAX_CHARACTERS = 1 << 20
#: Items that are written as JSON in one go; between two goes other threads may run.
_GO = 1 << 14


async def tokenize(request: Request) -> Response:
    """Ids of a text, or of a conversation through the chat template."""
    body = parse(TokenizeRequest, await json_body(request))
    door = open_door(request)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    text = await _text(door, body)
    add_special, parse_special = _special(body)
    tokenizer = door.texts.tokenizer

    def work() -> bytes:
        ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        return _written(ids, door, body)

    return _answer(await door.texts.off_loop(len(text), work), ignored)


async def _text(door: Door, body: TokenizeRequest) -> str:
    """What is to be tokenized. Raises ApiError."""
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid("One of prompt, content and messages is needed, and only one.", "prompt")
    if body.messages is not None:
        text = await _rendered(door, body, body.messages)
    else:
        text = getattr(body, given[0])
    if len(text) > MAX_CHARACTERS:
        raise invalid(
            f"{given[0]} has {len(text):,} characters; at most {MAX_CHARACTERS:,}.", given[0]
        )
    return text


def _special(body: TokenizeRequest) -> tuple[bool, bool]:
    """add_special (default: for `prompt` only), parse_special."""
    given = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    add_special = body.prompt is not None if given is None else given
    return add_special, body.parse_special is not False


def _checked(text: str, name: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise invalid(f"{name} has {len(text):,} characters; at most {MAX_CHARACTERS:,}.", name)
    return text


def _written(ids: list[int], door: Door, body: TokenizeRequest) -> bytes:
    """The answer's JSON."""
    tokenizer = door.texts.tokenizer
    tokens = [_piece(tokenizer, i) for i in ids] if body.with_pieces else ids
    rest = dump({"count": len(ids), "max_model_len": door.max_model_len})[1:-1]
    answer = b'{"tokens":%b,%b' % (_list(tokens), rest)
    if body.return_token_strs:
        answer += b',"token_strs":%b' % _list([tokenizer.token_text(i) for i in ids])
    return answer + b"}"


def _list(values: Sequence[Any]) -> bytes:
    parts = (dump(values[i : i + _GO])[1:-1] for i in range(0, len(values), _GO))
    return b"[%b]" % b",".join(parts)


def _piece(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    """llama.cpp's form: text, or bytes where the token is part of a character."""
    data = tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(data)}


async def detokenize(request: Request) -> Response:
    """Text of ids."""
    body = parse(DetokenizeRequest, await json_body(request))
    door = open_door(request)
    check_served(door, body.model)
    ignored = ignored_fields(body)

    def work() -> bytes:
        check_ids(body.tokens, door.texts.tokenizer)
        text = door.texts.tokenizer.decode(body.tokens, skip_special=False)
        return dump({"prompt": text, "content": text})

    return _answer(await door.texts.off_loop(len(body.tokens), work), ignored)


async def apply_template(request: Request) -> Response:
    """The text of a conversation. Where the template writes the BOS itself, tokenize the text with
    add_special_tokens = false."""
    body = parse(ApplyTemplateRequest, await json_body(request))
    door = open_door(request)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    return _answer(dump({"prompt": await _rendered(door, body, body.messages)}), ignored)


async def _rendered(
    door: Door, body: ConversationFields, messages: Sequence[dict[str, Any]]
) -> str:
    template = door.texts.template(body.chat_template)
    talk = await dialogue(door, template, messages, asked_tools(body.tools, None, None))
    return await door.texts.render_chat(
        talk.messages, template, tools=talk.tools, **template_options(body)
    )


async def tokenizer_info(request: Request) -> Response:
    """Special tokens and the chat template: what a client needs to stand in for a tokenizer."""
    door = open_door(request)
    tokenizer = door.texts.tokenizer
    tokens = {name: text or None for name, text in special_tokens(tokenizer).items()}
    answer = {
        "tokenizer_class": "headrace",
        "name": tokenizer.name,
        "vocab_size": tokenizer.num_ids,
        "model_max_length": door.max_model_len,
        **tokens,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        "eos_token_ids": list(tokenizer.eos_ids),
        "add_bos_token": tokenizer.add_bos,
        "chat_template": door.texts.template_source,
    }
    return JSONResponse(answer)


def _answer(content: bytes, ignored: Sequence[str]) -> Response:
    return Response(content, media_type="application/json", headers=ignored_header(ignored))
