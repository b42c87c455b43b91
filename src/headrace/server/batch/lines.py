"""Lines of the two files: what a request line says, and what an answer line looks like.

    {"custom_id", "method", "url", "body"} ─▶ {"id", "custom_id", "response", "error"}

An answer's id names its input line: number, hash of the line's bytes, hash of the settings. That is
all a later run needs to know what is done. OpenAI's batch format; no engine here.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.server.body import parse_object
from headrace.server.errors import ApiError, invalid
from headrace.server.intake.chat import read_chat
from headrace.server.intake.common import Reader
from headrace.server.intake.completion import read_completion
from headrace.server.intake.embedding import read_embedding
from headrace.server.intake.response import read_response
from headrace.server.render.answer import dump

#: What a line's `url` may say.
READERS: dict[str, Reader] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/embeddings": read_embedding,
    "/v1/responses": read_response,
}
MAX_CUSTOM_ID = 512
ID = re.compile(r"batch_req_(?P<number>[0-9]{1,12})_(?P<line>[0-9a-f]{16})_(?P<run>[0-9a-f]{8})")
#: How every line of ours begins.
START = b'{"id":"batch_req_'


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input. number: from 1. digest: of its bytes. data: None = longer than
    allowed."""

    number: int
    digest: str
    data: bytes | None

    def id(self, run: str) -> str:
        """The name of its answer. run: hash of the settings."""
        return f"batch_req_{self.number}_{self.digest}_{run}"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a line asks for."""

    read: Reader
    body: dict[str, Any]


def read_lines(path: Path, max_bytes: int) -> Iterator[Line]:
    """All lines that are not blank. A line of more than max_bytes is never held in memory. Raises
    OSError."""
    with path.open("rb") as file:
        number = 0
        while True:
            data = file.readline(max_bytes + 2)
            if not data:
                return
            number += 1
            whole = data.endswith(b"\n") or len(data) <= max_bytes
            digest = hashlib.sha256(data.rstrip(b"\r\n"))
            while not whole:
                rest = file.readline(1 << 20)
                digest.update(rest.rstrip(b"\r\n"))
                if rest.endswith(b"\n") or not rest:
                    break
            if number == 1:
                data = data.removeprefix(codecs.BOM_UTF8)  # as Windows' editors write it
            if not data.strip():
                continue
            yield Line(number, digest.hexdigest()[:16], data if whole else None)


def parse_line(
    line: Line, max_bytes: int, max_nesting: int
) -> tuple[str | None, BatchRequest | ApiError]:
    """The line's custom_id, if it has a usable one, and its request, or what is wrong with it."""
    custom_id = None
    try:
        if line.data is None:
            raise invalid(f"The line is longer than {max_bytes:,} bytes.", code="line_too_long")
        values = parse_object(line.data, max_nesting + 1)  # `body` is one level down
        custom_id = _custom_id(values)
        return custom_id, _request(values)
    except ApiError as error:
        return custom_id, error


def _custom_id(values: dict[str, Any]) -> str:
    name = values.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_CUSTOM_ID:
        raise invalid(f"custom_id must be text of 1 to {MAX_CUSTOM_ID} characters.", "custom_id")
    return name


def _request(values: dict[str, Any]) -> BatchRequest:
    if values.get("method", "POST") != "POST":
        raise invalid('method must be "POST".', "method")
    url = values.get("url")
    read = READERS.get(url) if isinstance(url, str) else None
    if read is None:
        raise invalid(f"url {str(url)[:80]!r} is not one of {', '.join(READERS)}.", "url")
    body = values.get("body")
    if not isinstance(body, dict):
        raise invalid("body must be an object: the request.", "body")
    if body.get("stream"):
        raise invalid("stream is not for batches: every answer comes whole.", "stream")
    return BatchRequest(read, body)


def answer_line(name: str, custom_id: str | None, body: bytes) -> bytes:
    """The line of a request that was answered. body: its JSON."""
    head = dump({"id": name, "custom_id": custom_id})[:-1]
    response = b'{"status_code":200,"request_id":%b,"body":%b}' % (dump(name), body)
    return b'%b,"response":%b,"error":null}\n' % (head, response)


def refusal_line(name: str, custom_id: str | None, error: ApiError) -> bytes:
    """The line of a request that was refused or failed: status and error as HTTP would have them,
    and once more where batch readers look."""
    body = {"status_code": error.status, "request_id": name, "body": error.to_dict()}
    told = error.to_dict()["error"]
    code = told["code"] or told["type"]
    return (
        dump(
            {
                "id": name,
                "custom_id": custom_id,
                "response": body,
                "error": {"code": code, "message": error.message},
            }
        )
        + b"\n"
    )
