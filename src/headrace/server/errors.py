"""ApiError: what goes wrong for one request, as OpenAI's clients expect to read it.

    {"error": {"message": …, "type": …, "param": null | field, "code": null | word}}

Clients map the status to an exception class and retry 408, 409, 429 and 5xx by themselves.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from headrace.connection import Refusal
from headrace.engine.params import SamplingParams
from headrace.errors import (
    CapacityError,
    ContextLengthError,
    HeadraceError,
    PinsFullError,
    PromptError,
    QueueFullError,
    UsageError,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "unavailable_error",
}


#: SamplingParams' sentences say "FIELD = …", "FIELD must …", "FIELD holds …" or "FIELD bans …".
_FIELD = re.compile(r"\b([a-z_]+)(?:\[\d+\])? (?:= |must |holds |bans )")
#: Fields that have another name in a request.
_REQUEST_NAMES = {field.name: field.name for field in fields(SamplingParams)} | {
    "stages": "sampler_stages",
    "trace": "sampler_trace",
    "banned_token_ids": "bad_words",
    "num_draft_tokens": "speculative",
    "acceptance": "speculative",
}


class ApiError(Exception):
    """One refusal or failure. headers: extra response headers, such as Retry-After."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def kind(self) -> str:
        """OpenAI's `type` of it."""
        return _TYPES.get(self.status, "invalid_request_error")

    def to_dict(self) -> dict[str, Any]:
        """The error object. An unavailable server's code is its status, as llama.cpp's is."""
        code = self.status if self.status == 503 and self.code is None else self.code
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": code,
            }
        }

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_dict()).encode()


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


def api_error(error: HeadraceError) -> ApiError:
    """What a caller's mistake, or a full house, looks like from outside."""
    message = str(error)
    match error:
        case PinsFullError():
            return ApiError(409, message, code="pins_full")
        case QueueFullError():
            return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
        case ContextLengthError():
            return invalid(message, code="context_length_exceeded")
        case UsageError():
            return invalid(message, named_field(message))
        case PromptError() | CapacityError():
            return invalid(message)
    return ApiError(500, message)


def wording(refusal: Refusal) -> tuple[str, bytes]:
    """What a connection refuses looks like any other refusal."""
    return "application/json", ApiError(refusal.status, refusal.message).to_bytes()


def named_field(message: str) -> str | None:
    """The request field that a sentence of SamplingParams is about."""
    found = _FIELD.search(message)
    return None if found is None else _REQUEST_NAMES.get(found[1])
