"""Fields: typed, range-checked reading of a model file's hyper-parameters.

Model files are hostile until shown otherwise: every value is checked for type and range before it
is used for anything, and what is wrong is said in one sentence that names file, key and range.
Works alike on GGUF key-values (behind an architecture prefix) and on config.json (null = absent).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard, TypeVar

import numpy as np

from headrace.errors import ModelFileError

# Sane maxima: far above any model there is, far below what could exhaust memory by itself.
MAX_LAYERS = 1024
MAX_HIDDEN = 1 << 17
MAX_INTERMEDIATE = 1 << 20
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_VOCAB = 1 << 22
MAX_CONTEXT = 1 << 24

N = TypeVar("N", int, float)


class Fields:
    """A read-only view of one mapping of hyper-parameters."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.source = source

    def error(self, name: str, problem: str) -> ModelFileError:
        """The error to raise about field `name`."""
        return ModelFileError(f"{self.source}: {self._prefix}{name} {problem}.")

    def get(self, name: str) -> object:
        """The raw value, None if absent (or null)."""
        return self._values.get(self._prefix + name)

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def count(self, name: str, high: int, *, low: int = 1, default: int | None = None) -> int:
        """An integer in low … high; `default` if absent.

        A per-layer list is accepted where all layers agree.
        """
        value = self._uniform(name, self.get(name))
        if value is None:
            return self._default(name, default)
        if not _is_integer(value) or not low <= int(value) <= high:
            raise self.error(name, f"is {_show(value)}, expected an integer in {low} … {high}")
        return int(value)

    def real(self, name: str, low: float, high: float, *, default: float | None = None) -> float:
        """A finite number in low … high; `default` if absent."""
        value = self._uniform(name, self.get(name))
        if value is None:
            return self._default(name, default)
        number = _float(value) if _is_number(value) else math.nan
        if not low <= number <= high:
            raise self.error(name, f"is {_show(value)}, expected a number in {low:g} … {high:g}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """true or false; `default` if absent."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_):
            raise self.error(name, f"is {_show(value)}, expected true or false")
        return bool(value)

    def text(self, name: str, *, default: str) -> str:
        """A string; `default` if absent."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, f"is {_show(value)}, expected a string")
        return value

    def texts(self, name: str, length: int) -> tuple[str, ...] | None:
        """A list of `length` strings; None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if (
            not _is_list(value)
            or len(value) != length
            or not all(isinstance(v, str) for v in value)
        ):
            raise self.error(name, f"is {_show(value)}, expected a list of {length} strings")
        return tuple(str(v) for v in value)

    def flags(self, name: str, length: int) -> tuple[bool, ...] | None:
        """A list of `length` flags; None if absent or not a list."""
        value = self.get(name)
        if not _is_list(value):
            return None
        if len(value) != length or not all(isinstance(v, bool | np.bool_) for v in value):
            raise self.error(name, f"is {_show(value)}, expected a list of {length} flags")
        return tuple(bool(v) for v in value)

    def table(self, name: str) -> Fields | None:
        """A nested mapping; None if absent or empty."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"is {_show(value)}, expected a mapping")
        return None if not value else Fields(value, f"{self.source}: {self._prefix}{name}")

    def require(self, name: str, allowed: Sequence[object], *, absent: object) -> None:
        """Refuses a setting that changes the arithmetic in a way we do not compute."""
        value = self.get(name)
        value = absent if value is None else value
        if not any(type(value) is type(a) and value == a for a in allowed):
            shown = " or ".join(_show(a) for a in allowed)
            raise self.error(name, f"is {_show(value)}; only {shown} is supported")

    def _default(self, name: str, default: N | None) -> N:
        if default is None:
            raise self.error(name, "is missing")
        return default

    def _uniform(self, name: str, value: object) -> object:
        if not _is_list(value):
            return value
        if len(value) == 0 or any(_show(v) != _show(value[0]) for v in value):
            raise self.error(name, "differs between layers, which is not supported")
        return value[0]


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return _is_integer(value) or isinstance(value, float | np.floating)


def _float(value: float) -> float:
    """The nearest float; infinite for an integer beyond them (JSON sets no limit)."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _show(value: object) -> str:
    """A value for a message: short, whatever the file holds."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:37] + "…"
