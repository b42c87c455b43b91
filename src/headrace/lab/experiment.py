"""What an experiment is.

    predict   numbers from the cost interpreter, written down before anything is measured
    check     correctness; a failed check ends the run before any speed is looked at
    measure   intervals for the predictions, tables, figures, conclusions

Knows no files and no command line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from headrace.lab.values import Check, Findings, Prediction

if TYPE_CHECKING:
    from headrace.lab.lab import Lab


class Experiment(ABC):
    """One experiment. Stateless: what a run needs is in Lab.

    claim: what is taught, with its source. faults: of `headrace verify --list-faults`, which check
    must catch. quick_s, full_s: seconds on two cores, and check_share: the part of them that check
    takes, all for the time left. default_model: what it runs on unless told; None: it makes its own
    models, and refuses --model. try_this: what to change next.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    claim: ClassVar[str]
    quick_s: ClassVar[float]
    full_s: ClassVar[float]
    check_share: ClassVar[float] = 0.25
    default_model: ClassVar[str | None] = "smollm2-135m"
    faults: ClassVar[tuple[str, ...]] = ()
    try_this: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def predict(self, lab: Lab) -> list[Prediction]:
        """Numbers, before anything is measured; cheap."""

    @abstractmethod
    def check(self, lab: Lab) -> list[Check]:
        """Correctness, with lab.fault planted; at least one check."""

    @abstractmethod
    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        """After every check has passed."""
