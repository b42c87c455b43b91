"""A real server with planted troubles, for test_liveness.py: python planted_server.py DIRECTORY.

Loading waits for the file `load` in the directory; a step waits while the file `hold` is there, and
raises outside of the engine's own care once the file `break` is. Once `useless` is there, the model
computes nothing. While `garble` is there, answers
to completions cannot be written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, build_engine, open_model
from headrace.engine.outputs import Delta
from headrace.engine.scheduler import Plan
from headrace.engine.scoring import Logits
from headrace.ops.batch import Batch
from headrace.server.job import Job
from headrace.server.logs import set_up_logging
from headrace.server.render.completion import CompletionRenderer
from headrace.server.run import serve
from headrace.server.settings import ServeSettings


def load(directory: Path) -> tuple[OpenModel, Engine]:
    while not (directory / "load").exists():
        time.sleep(0.01)
    model = open_model("smollm2-135m", offline=True)
    engine = build_engine(model, EngineOptions(kv_cache_memory="256MiB"))
    step, schedule, run = engine.step, engine.scheduler.schedule, engine.executor.run

    def held() -> list[Delta]:
        while (directory / "hold").exists():
            time.sleep(0.01)
        return step()

    def broken() -> Plan:
        if (directory / "break").exists():
            raise RuntimeError("planted")
        return schedule()

    def useless(batch: Batch) -> Logits:
        if (directory / "useless").exists():
            raise RuntimeError("planted: useless")
        return run(batch)

    engine.executor.run = useless  # type: ignore[method-assign]
    engine.step = held  # type: ignore[method-assign]
    engine.scheduler.schedule = broken  # type: ignore[method-assign]
    return model, engine


def plant_garbler(directory: Path) -> None:
    chunk, whole = CompletionRenderer.chunk, CompletionRenderer.whole

    def check() -> None:
        if (directory / "garble").exists():
            raise RuntimeError("garbled")

    def garbled_chunk(self: CompletionRenderer, job: Job, delta: Delta) -> bytes:
        check()
        return chunk(self, job, delta)

    def garbled_whole(self: CompletionRenderer, jobs: Sequence[Job]) -> bytes:
        check()
        return whole(self, jobs)

    CompletionRenderer.chunk = garbled_chunk  # type: ignore[method-assign]
    CompletionRenderer.whole = garbled_whole  # type: ignore[method-assign]


if __name__ == "__main__":
    plant_garbler(Path(sys.argv[1]))
    set_up_logging("text")
    settings = ServeSettings(("planted",), port=0, stall_timeout_s=0.3, step_limits=False)
    serve(settings, lambda: load(Path(sys.argv[1])))
