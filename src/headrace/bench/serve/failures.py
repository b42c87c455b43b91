"""How a request can fail. A failed request is counted by its kind and never among the fast ones."""

from __future__ import annotations

from enum import Enum


class Failure(Enum):
    """Kinds of failure, as reports name them (a status also carries its number: http_429)."""

    CONNECT = "connect"
    """no connection, or no TLS on it"""
    STATUS = "http"
    """an answer with a status that is not 200"""
    DISCONNECTED = "disconnected"
    """the connection ended before the answer did"""
    TIMEOUT = "timeout"
    """not finished in --timeout seconds"""
    ERROR_CHUNK = "error_chunk"
    """an error object in the stream"""
    NO_FINISH_REASON = "no_finish_reason"
    """the stream ended properly, and no chunk said why"""
    NO_TOKENS = "no_tokens"
    """a finish reason and not one token"""
    NOT_STREAMED = "not_streamed"
    """status 200, and no event stream"""
    BAD_CHUNK = "bad_chunk"
    """an event that is not a JSON object"""
    BAD_HTTP = "bad_http"
    """bytes that are not HTTP/1"""
    TOO_LARGE = "too_large"
    """a header, event or number of chunks above our limits"""


class RequestFailed(Exception):
    """Ends one request. label: its kind as reports name it. detail: one line for people."""

    def __init__(self, kind: Failure, detail: str, label: str | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.label = label or kind.value


def bad_status(status: int, detail: str) -> RequestFailed:
    """An answer that is not 200: "http_429"."""
    return RequestFailed(Failure.STATUS, detail, f"{Failure.STATUS.value}_{status}")
