"""Lines of an explanation: what = formula = numbers = result, to be followed with a calculator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """what = formula = numbers = result."""

    what: str
    formula: str
    numbers: str
    result: str

    def to_dict(self) -> dict[str, str]:
        return {
            "what": self.what,
            "formula": self.formula,
            "numbers": self.numbers,
            "result": self.result,
        }


@dataclass(frozen=True, slots=True)
class Section:
    """Some lines that belong together."""

    title: str
    lines: tuple[Line, ...]


def in_bytes(size: float) -> str:
    """A size with its unit."""
    return f"{size:,.0f} bytes"


def signed(size: float) -> str:
    """A difference with its sign."""
    return f"{'−' if size < 0 else '+'}{abs(size):,.0f}"
