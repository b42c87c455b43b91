"""Running a batch: a bounded window of lines through the door, answers as they come.

So many coroutines as the window is wide take line after line; the engine batches whatever is
inside. A bad line gets a line with its error and stops nothing; a broken engine or a full disk
stops the run, which can go on later.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, UsageError
from headrace.server.batch.ledger import Ledger
from headrace.server.batch.lines import (
    BatchRequest,
    Line,
    answer_line,
    parse_line,
    read_lines,
    refusal_line,
)
from headrace.server.door import Door
from headrace.server.errors import ApiError, api_error, invalid
from headrace.server.respond import problem_of
from headrace.server.submit import enter

_LOG = logging.getLogger("headrace.server")
#: Between two syncs of the output: what a loss of power can cost; a killed process loses nothing.
SYNC_S = 1.0
STOPPED = "the batch was stopped"


@dataclass(slots=True)
class Progress:
    """total: lines of the input that are not blank; kept: answered by earlier runs; answered,
    refused: by this one. Token counts of this run; began_s: monotonic."""

    total: int
    kept: int
    answered: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.refused


def survey(path: Path, ledger: Ledger, max_bytes: int) -> Progress:
    """Reads the whole input once: how much there is, and whether what is done is still the same.
    Raises UsageError."""
    total = kept = last = 0
    try:
        for line in read_lines(path, max_bytes):
            total, last = total + 1, line.number
            kept += ledger.check(line)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if kept < len(ledger.done):
        beyond = min(set(ledger.done) - _numbers(path, max_bytes))
        raise UsageError(
            f"{ledger.path} answers line {beyond}, which the input (to line {last}) does not have: "
            f"the input was changed. Write to another file, or remove this one to start again."
        )
    return Progress(total, kept)


def _numbers(path: Path, max_bytes: int) -> set[int]:
    return {line.number for line in read_lines(path, max_bytes)}


def run_hash(door: Door) -> str:
    """Of everything but the lines that decides answers: model file, formats, context, template."""
    config, model, settings = door.engine_config, door.model, door.settings
    sizes = [file.stat().st_size for file in model.checkpoint.files]
    parts: list[Any] = [
        model.path.name, model.quantize, *sizes, config.kv_format.value, config.max_model_len,
        door.texts.template_source, settings.tool_call_parser, settings.reasoning_parser,
    ]  # fmt: skip
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:8]


class EngineBroke(Exception):
    """Nothing more can be computed in this process."""


class Batch:
    """One run over one input. run: hash of the settings. window: lines that are inside together."""

    def __init__(
        self, door: Door, ledger: Ledger, progress: Progress, run: str, window: int
    ) -> None:
        self._door = door
        self._ledger = ledger
        self._progress = progress
        self._run = run
        self._window = window
        self._owners: dict[int, int] = {}  # hash of a custom_id → the line that had it first

    async def answer_all(self, lines: Iterable[Line], report: Callable[[Progress], None]) -> None:
        """Answers every line that is not done. report: called now and then, and at the end. Raises
        EngineBroke, OSError when the output cannot be written, HeadraceError when the input
        changes meanwhile."""
        waiting = iter(lines)
        ticker = asyncio.create_task(self._tick(report))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._window):
                    group.create_task(self._work(waiting))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            self._ledger.sync()
        report(self._progress)
        if self._progress.done < self._progress.total:
            raise HeadraceError(
                f"The input ended sooner than when the run began: {self._progress.done} of "
                f"{self._progress.total} lines have an answer, and the last may have been cut."
            )

    async def _work(self, lines: Iterator[Line]) -> None:
        """One line after the other."""
        for line in lines:
            custom_id, request = self._read(line)
            if not self._ledger.check(line):
                self._ledger.append(await self._answer(line, custom_id, request))
            await asyncio.sleep(0)  # lines that need no computing do not hold up the others

    def _read(self, line: Line) -> tuple[str | None, BatchRequest | ApiError]:
        """Called in the order of the lines, so that the first of equal custom_ids has it, whatever
        earlier runs have done."""
        settings = self._door.settings
        custom_id, request = parse_line(line, settings.max_body_bytes, settings.max_nesting)
        if custom_id is not None:
            owner = self._owners.setdefault(hash(custom_id), line.number)
            if owner != line.number:
                request = invalid(
                    f"custom_id {custom_id[:80]!r} is already that of line {owner}.",
                    "custom_id",
                    "duplicate_custom_id",
                )
        return custom_id, request

    async def _answer(
        self, line: Line, custom_id: str | None, request: BatchRequest | ApiError
    ) -> bytes:
        """The line of its answer, or of what went wrong with it."""
        name = line.id(self._run)
        try:
            if isinstance(request, ApiError):
                raise request
            body = await self._run_one(request, name)
            self._progress.answered += 1
            return answer_line(name, custom_id, body)
        except ApiError as error:
            refusal = error
        except HeadraceError as error:
            refusal = api_error(error)
        except EngineBroke:
            raise
        except Exception:
            _LOG.exception("line %d could not be answered", line.number)
            refusal = ApiError(500, "Something went wrong inside; the log says what.")
        self._progress.refused += 1
        return refusal_line(name, custom_id, refusal)

    async def _run_one(self, request: BatchRequest, name: str) -> bytes:
        intake = await request.read(self._door, request.body, time.monotonic())
        flow = enter(self._door, intake, name)
        try:
            await flow.wait()
        finally:
            flow.cancel(STOPPED)
        if flow.error is not None and not isinstance(flow.error, HeadraceError):
            raise EngineBroke(f"The engine broke: {flow.error}")
        problem = problem_of(flow)
        if problem is not None:
            raise problem
        for job in flow.jobs:
            assert job.request is not None
            self._progress.prompt_tokens += len(job.prompt)
            self._progress.output_tokens += sum(len(g.token_ids) for g in job.request.generations)
        return await asyncio.to_thread(intake.renderer.whole, flow.jobs)

    async def _tick(self, report: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            report(self._progress)
            await asyncio.to_thread(self._ledger.sync)
