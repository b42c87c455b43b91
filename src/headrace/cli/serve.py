"""`headrace serve`: an OpenAI-compatible server over one model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options as o
from headrace.cli.progress import StderrReporter
from headrace.cli.ui import LabDir, need_ui_extra
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.engine.core import Engine
    from headrace.engine.model import OpenModel
    from headrace.server.mounts import MakeMounted

#: A body is read whole, as text and as values.
MAX_BODY_MIB = 1 << 12


def serve(
    model: o.Model,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 = any free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            "-a",
            show_default=False,
            help="Name in the API instead of MODEL; may be repeated.",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            envvar="HEADRACE_API_KEY",
            show_default=False,
            help="Key that clients must send; may be repeated. Better in the environment.",
        ),
    ] = None,
    max_model_len: o.MaxModelLen = None,
    max_num_seqs: o.MaxNumSeqs = 64,
    max_num_batched_tokens: o.ChunkTokens = None,
    kv_cache_memory: o.KVMemory = None,
    kv_cache_dtype: o.KVFormat = "bf16",
    block_size: o.BlockSize = 16,
    enable_prefix_caching: o.PrefixCaching = None,
    speculative: o.Speculative = None,
    draft_model: o.DraftModel = None,
    draft_quantize: o.DraftQuantize = None,
    num_draft_tokens: o.NumDraftTokens = "auto",
    acceptance: o.Acceptance = "coupled",
    schedule_policy: o.SchedulePolicy = "fcfs",
    threads: o.Threads = None,
    max_queued_requests: Annotated[
        int, typer.Option(help="Requests that may wait; more are refused with 429.")
    ] = 1024,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            help="Longest life of a request, seconds (default: no limit).", show_default=False
        ),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(help="How long a stopping server lets requests finish, seconds.")
    ] = 30.0,
    ping_interval: Annotated[
        float, typer.Option(help="Silence in a stream before a comment line is sent, seconds.")
    ] = 5.0,
    max_body_mib: Annotated[
        float, typer.Option(help="Largest request body, MiB; streams wait while one is parsed.")
    ] = 4.0,
    reader_timeout: Annotated[
        float,
        typer.Option(help="A reader that takes nothing for so long is disconnected, seconds."),
    ] = 120.0,
    chat_template: o.ChatTemplate = None,
    trust_request_chat_template: Annotated[
        bool, typer.Option(help="Requests may bring their own chat_template.")
    ] = False,
    metrics_prefix: Annotated[
        str, typer.Option(help="Prefix of the metrics' names; vllm for existing dashboards.")
    ] = "headrace",
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="How tool calls are read: auto (asks the chat template), hermes, json or none."
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(
            help="How reasoning is told from answers: auto (asks the chat template), think or none."
        ),
    ] = "auto",
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Web origin that browsers may call from (CORS); may be repeated.",
            show_default=False,
        ),
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Also serve a dashboard, at /ui.", show_default=False)
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="With --ui: name by which browsers may call it, besides localhost, this machine's "
            "name and addresses; may be repeated.",
            show_default=False,
        ),
    ] = None,
    lab_dir: LabDir = Path("lab-results"),
    step_limits: Annotated[
        bool,
        typer.Option(
            help="Measure the machine at start (0.3 s), so that answers and metrics say how close "
            "they came to its limit."
        ),
    ] = True,
    stall_timeout: Annotated[
        float, typer.Option(help="A step that takes longer makes /health answer 503, seconds.")
    ] = 60.0,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            show_default=False,
            help="Send a span per request there (OTLP over HTTP), as http://localhost:4318.",
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    quantize: o.Quantize = None,
    weight_cache: o.WeightCache = None,
    kv_save: o.KVSave = None,
    offline: o.Offline = False,
) -> None:
    """Serve a model over HTTP, for OpenAI's clients and tools. Ctrl-C or SIGTERM lets running
    requests finish, then stops."""
    need_serve_extra()
    from headrace.engine.config import EngineOptions
    from headrace.engine.model import build_engine, open_draft, open_model
    from headrace.server.logs import set_up_logging
    from headrace.server.run import serve as run_server
    from headrace.server.settings import ServeSettings

    settings = ServeSettings(
        served_model_names=tuple(dict.fromkeys(served_model_name or [default_name(model)])),
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        allow_origins=tuple(allow_origin or ()),
        max_queued_requests=max_queued_requests,
        request_timeout_s=request_timeout,
        drain_timeout_s=drain_timeout,
        ping_interval_s=ping_interval,
        max_body_bytes=body_bytes(max_body_mib),
        reader_timeout_s=reader_timeout,
        trust_request_chat_template=trust_request_chat_template,
        metrics_prefix=metrics_prefix,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        log_format=log_format,
        step_limits=step_limits,
        stall_timeout_s=stall_timeout,
        otlp_endpoint=otlp_endpoint,
    )
    set_up_logging(log_format, check_level(log_level))
    options = EngineOptions(
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        speculative=speculative,
        num_draft_tokens=o.draft_tokens(num_draft_tokens),
        acceptance=acceptance,
        schedule_policy=schedule_policy,
        kv_cache_dtype=kv_cache_dtype,
        max_queue=max_num_seqs + max_queued_requests,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory=kv_cache_memory,
        num_threads=threads,
        weight_cache=weight_cache,
        kv_save=kv_save,
    )

    def load() -> tuple[OpenModel, Engine]:
        opened = open_model(
            model,
            quantize=quantize,
            num_threads=threads,
            offline=offline,
            progress=StderrReporter(),
        )
        draft = open_draft(
            draft_model,
            quantize=draft_quantize,
            num_threads=threads,
            offline=offline,
            progress=StderrReporter(),
        )
        return opened, build_engine(opened, options, draft=draft)

    run_server(
        settings,
        load,
        template=str(chat_template) if chat_template else None,
        mounts=_dashboard(allow_host or (), lab_dir) if ui else None,
    )


def _dashboard(hosts: Collection[str], lab_dir: Path) -> dict[str, MakeMounted]:
    """The dashboard where the server can mount it; it talks to the server as any client does."""
    need_ui_extra()
    from headrace.ui.app import PREFIX, Dashboard

    return {PREFIX: lambda url: Dashboard(url, hosts, lab_dir)}


def need_serve_extra() -> None:
    """Raises UsageError when the libraries of the server are missing."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"The server needs {error.name}: pip install 'headrace[serve]'.") from None


def default_name(model: str) -> str:
    """A file goes by its stem, anything else by the name it was given."""
    path = Path(model)
    return path.stem or model if path.exists() else model


def body_bytes(mib: float) -> int:
    """Raises UsageError for what is no size."""
    if not 0 < mib < MAX_BODY_MIB:
        raise UsageError(f"--max-body-mib must be more than 0 and less than {MAX_BODY_MIB}.")
    return round(mib * (1 << 20))


def check_level(level: str) -> str:
    """Raises UsageError for what is no level of logging."""
    if level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level must be debug, info, warning or error, not {level!r}.")
    return level
