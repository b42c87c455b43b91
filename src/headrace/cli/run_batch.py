"""`headrace run-batch`: a file of requests in OpenAI's batch format, answered offline."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headrace.cli import options as o
from headrace.cli.progress import StderrReporter
from headrace.cli.serve import default_name, need_serve_extra
from headrace.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.server.batch.ledger import Ledger
    from headrace.server.batch.run import Progress
    from headrace.server.door import Door

T = TypeVar("T")
#: Seconds between two lines of progress where nobody watches.
LOG_EVERY_S = 10.0


def run_batch(
    input_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[IN]", help="Requests, one JSON object a line.", show_default=False
        ),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OUT]",
            help="Answers; a file that is begun is gone on with.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="See `headrace generate`.", show_default=False),
    ] = None,
    input_option: Annotated[
        Path | None, typer.Option("--input-file", "-i", help="IN.", show_default=False)
    ] = None,
    output_option: Annotated[
        Path | None, typer.Option("--output-file", "-o", help="OUT.", show_default=False)
    ] = None,
    model_option: Annotated[
        str | None, typer.Option("--model", "-m", help="MODEL.", show_default=False)
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            "-a",
            show_default=False,
            help="What the lines call the model; may be repeated.",
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
    chat_template: o.ChatTemplate = None,
    quantize: o.Quantize = None,
    weight_cache: o.WeightCache = None,
    kv_save: o.KVSave = None,
    offline: o.Offline = False,
) -> None:
    """Answer the requests of a file (OpenAI's batch format) without a server. OUT is appended to:
    the same command goes on after an interruption, however hard."""  # fmt: skip
    source = _one("IN", input_file, input_option)
    target = _one("OUT", output_file, output_option)
    name = _one("MODEL", model, model_option)
    need_serve_extra()
    from headrace.engine.config import EngineOptions
    from headrace.engine.model import build_engine, open_draft, open_model
    from headrace.server.batch.ledger import Ledger
    from headrace.server.batch.run import survey
    from headrace.server.door import Door
    from headrace.server.intake.common import MAX_PROMPTS
    from headrace.server.logs import set_up_logging
    from headrace.server.settings import ServeSettings

    set_up_logging("text")
    if target.exists() and source.exists() and source.samefile(target):
        raise UsageError("IN and OUT are the same file.")
    settings = ServeSettings(
        served_model_names=tuple(dict.fromkeys((*(served_model_name or ()), default_name(name)))),
        max_queued_requests=2 * max_num_seqs * MAX_PROMPTS,
        step_limits=False,
    )
    if not source.exists():
        raise UsageError(f"There is no file {source}.")
    if not source.is_file():
        raise UsageError(f"{source} is not a file of requests.")
    with Ledger(target) as ledger:
        progress = survey(source, ledger, settings.max_body_bytes)
        display = Display(progress)
        display.begin(ledger)
        if progress.done == progress.total:
            return
        opened = open_model(
            name, quantize=quantize, num_threads=threads, offline=offline,
            progress=StderrReporter(),
        )  # fmt: skip
        options = EngineOptions(
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            speculative=speculative,
            num_draft_tokens=o.draft_tokens(num_draft_tokens),
            acceptance=acceptance,
            schedule_policy=schedule_policy,
            kv_cache_dtype=kv_cache_dtype,
            max_queue=max_num_seqs + settings.max_queued_requests,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_memory=kv_cache_memory,
            num_threads=threads,
            weight_cache=weight_cache,
            kv_save=kv_save,
        )
        draft = open_draft(
            draft_model, quantize=draft_quantize, num_threads=threads, offline=offline,
            progress=StderrReporter(),
        )  # fmt: skip
        engine = build_engine(opened, options, draft=draft)
        door = Door(settings, opened, engine, str(chat_template) if chat_template else None)
        door.warm_up()
        try:
            asyncio.run(_answer_all(door, ledger, source, display))
        except KeyboardInterrupt:
            display.interrupted()
            raise
    display.end()


async def _answer_all(door: Door, ledger: Ledger, source: Path, display: Display) -> None:
    from headrace.server.batch.lines import read_lines
    from headrace.server.batch.run import Batch, EngineBroke, run_hash

    run = run_hash(door)
    ledger.check_run(run)
    display.progress.began_s = time.monotonic()
    door.start()
    try:
        batch = Batch(door, ledger, display.progress, run, window=2 * door.max_num_seqs)
        lines = read_lines(source, door.settings.max_body_bytes)
        await batch.answer_all(lines, display.show)
    except EngineBroke as error:
        raise HeadraceError(
            f"{error}. What is answered stays; the same command goes on from there."
        ) from error
    finally:
        door.close()
        door.save_prefixes()


class Display:
    """Progress on stderr: one line that changes where a person watches, a line now and then where
    a log does."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._terminal = sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def begin(self, ledger: Ledger) -> None:
        """What there is to do."""
        progress = self.progress
        if ledger.num_dropped_bytes:
            self._print(f"dropped a last line that was cut off ({ledger.num_dropped_bytes} bytes)")
        kept = f", {progress.kept} of them already answered" if progress.kept else ""
        self._print(f"{progress.total} lines{kept}")

    def show(self, progress: Progress) -> None:
        """Called about once a second."""
        now = time.monotonic()
        if self._terminal:
            print(f"\r\x1b[2K{_state(progress, now)}", end="", file=sys.stderr, flush=True)
        elif now - self._shown_s >= LOG_EVERY_S:
            self._shown_s = now
            self._print(_state(progress, now))

    def end(self) -> None:
        """The sum."""
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr)
        self._print(_state(self.progress, time.monotonic()))

    def interrupted(self) -> None:
        """What there is, and how to go on."""
        self.end()
        self._print("interrupted; the same command goes on from there")

    def _print(self, text: str) -> None:
        print(f"headrace: {text}", file=sys.stderr, flush=True)


def _state(progress: Progress, now_s: float) -> str:
    seconds = max(now_s - progress.began_s, 1e-9)
    refused = f", {progress.refused} refused" if progress.refused else ""
    return (
        f"{progress.done}/{progress.total} lines{refused}, {seconds:.1f} s, "
        f"{progress.output_tokens / seconds:.0f} output tok/s, "
        f"{progress.prompt_tokens / seconds:.0f} prompt tok/s"
    )


def _one(what: str, *given: T | None) -> T:
    values = [value for value in given if value is not None]
    if len(values) != 1:
        raise UsageError(f"{what} is needed{', once' if values else ''}: see run-batch --help.")
    return values[0]
