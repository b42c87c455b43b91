"""Faults to plant on purpose: each changes one index or table in the component that owns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.engine.core import Engine
from headrace.ops.recording import Op


@dataclass(frozen=True, slots=True)
class Fault:
    """name: as `--inject` takes it. symptom: how a user would notice (docs/faults.md).
    edit: changes recorded ops of the native program. engine: the engine class with the fault."""

    name: str
    symptom: str
    edit: Callable[[Op], Op] | None = None
    engine: type[Engine] = Engine


NO_FAULT = Fault("none", "")
