"""A training's state in one safetensors file, replaced as a whole: parameters, moments, and the
numbers around them as JSON in the file's metadata. No pickle, so nothing in it can run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write

_KEY = "headrace_training"
_PARTS = ("parameters", "first", "second")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """step: the next one. fingerprint: what the training is; another training never resumes from
    it. history: [step, training loss, validation loss or None] so far. Tensors by logical name."""

    step: int
    fingerprint: str
    history: list[list[float | None]]
    parameters: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Writes it; an interrupted write leaves the earlier file. Raises UsageError."""
    numbers = {"step": state.step, "fingerprint": state.fingerprint, "history": state.history}
    tensors = {
        f"{part}/{name}": tensor.detach().contiguous()
        for part in _PARTS
        for name, tensor in getattr(state, part).items()
    }
    try:
        with atomic_write(path) as file:
            file.write(save(tensors, {_KEY: json.dumps(numbers)}))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def load_checkpoint(path: Path, fingerprint: str) -> Checkpoint | None:
    """The state, None when there is none yet. Raises UsageError for a damaged file, or one of
    another training."""
    if not path.exists():
        return None
    state = load_state(path)
    if state.fingerprint != fingerprint:
        raise UsageError(f"{path} is of another training; remove it, or choose another place.")
    return state


def load_state(path: Path) -> Checkpoint:
    """Whatever training it is of. Raises UsageError for a missing or damaged file."""
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
    try:
        with safe_open(path, "pt") as file:
            numbers: dict[str, Any] = json.loads((file.metadata() or {})[_KEY])
            for key in file.keys():  # noqa: SIM118  (no mapping)
                part, name = key.split("/", 1)
                parts[part][name] = file.get_tensor(key)
        step, found = int(numbers["step"]), str(numbers["fingerprint"])
        history = [list(entry) for entry in numbers["history"]]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error}); remove it to start again.") from error
    return Checkpoint(step, found, history, **parts)
