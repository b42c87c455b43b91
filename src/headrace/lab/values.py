"""Plain values of experiments: predictions and their verdicts, checks, tables, figures, findings.

Knows no experiment, no files and no command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headrace.lab.statistics import Interval

Cell = str | float | int | None


def milliseconds(seconds: float) -> float:
    """A cell: to three places."""
    return round(1e3 * seconds, 3)


class Kind(Enum):
    """How a prediction is meant: the value itself, or a limit of it."""

    VALUE = "value"
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A number written down before it is measured.

    key: names the measured interval it is compared with. what: a sentence's subject, as "decode at
    1,024 tokens". how: where the number comes from. tolerance: a factor ≥ 1; slack: added to both
    ends. A value holds within [value ÷ tolerance − slack, value · tolerance + slack]; a limit is
    widened the same way on its one side.
    """

    key: str
    what: str
    value: float
    unit: str
    how: str
    kind: Kind = Kind.VALUE
    tolerance: float = 1.25
    slack: float = 0.0

    def __post_init__(self) -> None:
        if not self.tolerance >= 1 or not self.slack >= 0:
            raise ValueError(f"prediction {self.key}: tolerance {self.tolerance}, {self.slack=}")

    @property
    def band(self) -> tuple[float, float]:
        """(lowest, highest) value with which the prediction holds; infinite where it has no end."""
        ends = sorted((self.value / self.tolerance, self.value * self.tolerance))
        low, high = ends[0] - self.slack, ends[1] + self.slack
        match self.kind:
            case Kind.AT_MOST:
                return float("-inf"), high
            case Kind.AT_LEAST:
                return low, float("inf")
        return low, high


class Verdict(Enum):
    """What a measurement says of a prediction. NOT_RESOLVED: its interval crosses the border of the
    band. NOT_MEASURED: the run gave no figure for it."""

    HOLDS = "holds"
    REFUTED = "refuted"
    NOT_RESOLVED = "not resolved"
    NOT_MEASURED = "not measured"


def verdict(prediction: Prediction, measured: Interval | None) -> Verdict:
    """Judges by the whole interval, not by its middle."""
    if measured is None:
        return Verdict.NOT_MEASURED
    low, high = prediction.band
    if low <= measured.low and measured.high <= high:
        return Verdict.HOLDS
    if measured.high < low or high < measured.low:
        return Verdict.REFUTED
    return Verdict.NOT_RESOLVED


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about correctness. detail: figures, as "max |Δ| 0 over 2 × 300 rows"."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """rows: one list per row, as long as columns; None = no value, printed as —."""

    name: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name}: {row} does not fit {self.columns}")


@dataclass(frozen=True, slots=True)
class Figure:
    """file: the PNG in the run's directory. alt: what it shows, for those who do not see it."""

    file: str
    caption: str
    alt: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A sentence that the error bars carry; resolved = False: they do not, and it says so."""

    text: str
    resolved: bool = True


@dataclass(slots=True)
class Findings:
    """What a measurement gave. measured: by key of the prediction; other keys are welcome."""

    measured: dict[str, Interval] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    conclusions: list[Conclusion] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def conclude(self, text: str, resolved: bool = True) -> None:
        """Adds a conclusion."""
        self.conclusions.append(Conclusion(text, resolved))
