"""ServeSettings: everything a server is started with, checked once. Knows no engine and no HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from headrace.errors import UsageError
from headrace.server.parsing.reasoning import REASONING_PARSERS
from headrace.server.parsing.tool_style import TOOL_PARSERS

#: A prompt of the longest context stays far below it; streams wait while a body is read as JSON,
#: about 10 ms per MiB.
DEFAULT_MAX_BODY_BYTES = 4 << 20
DEFAULT_MAX_QUEUED = 1024


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How one server listens, whom it serves and what it refuses. Times in seconds.

    port: 0 = any free one, printed at start. served_model_names: what `model` may say; the first is
    reported. api_keys: any of them opens the door; none = open. allow_origins: CORS origins that
    browsers may call from; none = no CORS headers. max_queued_requests: requests that may wait
    besides those that run. request_timeout_s: longest life of a request, None = no limit.
    drain_timeout_s: how long a stopping server lets requests finish. ping_interval_s: silence in a
    stream after which a comment line is sent. max_body_bytes, max_nesting: of one JSON body.
    max_buffered_deltas: results a slow reader may have waiting before its request pauses.
    reader_timeout_s: how long a reader may take nothing of an answer that waits for it.
    trust_request_chat_template: a request may bring a chat template of its own.
    stall_timeout_s: how long a step may take before `/health` reports it. step_limits: the machine
    is measured at start, so that answers can say how close they came to its limit. otlp_endpoint:
    URL that spans are sent to, None = none. tool_call_parser, reasoning_parser: how answers are
    read (parsing/tool_style.py, parsing/reasoning.py).
    """

    served_model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    max_queued_requests: int = DEFAULT_MAX_QUEUED
    request_timeout_s: float | None = None
    drain_timeout_s: float = 30.0
    ping_interval_s: float = 5.0
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_nesting: int = 64
    max_buffered_deltas: int = 64
    reader_timeout_s: float = 120.0
    trust_request_chat_template: bool = False
    stall_timeout_s: float = 60.0
    metrics_prefix: str = "headrace"
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    log_format: str = "text"
    step_limits: bool = True
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not self.served_model_names or not all(self.served_model_names):
            raise UsageError("--served-model-name must not be empty.")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port must be 0 … 65535, not {self.port}.")
        if not all(key and key.isascii() and key.isprintable() for key in self.api_keys):
            raise UsageError("--api-key must be printable ASCII and not empty.")
        for origin in self.allow_origins:
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise UsageError(
                    "--allow-origin must be * or an origin as browsers send it, "
                    f"http://localhost:3000 without a path or slash, not {origin!r}."
                )
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix):
            raise UsageError(
                f"--metrics-prefix must be letters, digits and _, not {self.metrics_prefix!r}."
            )
        for name, value, known in (
            ("tool-call-parser", self.tool_call_parser, TOOL_PARSERS),
            ("reasoning-parser", self.reasoning_parser, REASONING_PARSERS),
        ):
            if value not in known:
                raise UsageError(f"--{name} must be one of {', '.join(known)}, not {value!r}.")
        if self.log_format not in ("text", "json"):
            raise UsageError(f"--log-format must be text or json, not {self.log_format!r}.")
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("port", "max_queued_requests", "drain_timeout_s") else 1e-3
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not value >= least:
                name = field.name.removesuffix("_s").replace("_", "-")
                raise UsageError(f"--{name} must be at least {least:g}, not {value}.")

    @property
    def model_name(self) -> str:
        """The name that answers carry."""
        return self.served_model_names[0]
