"""How often drafts are accepted, by the grade that their drafter gave them.

accepted ÷ tested, never ÷ drafted: a draft behind the first miss of a round says nothing. Recent
tests count more. A request starts from what the engine had seen of all when it came, the engine
from a guess, and either is believed the less the more there is to go by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.engine.speculation.drafter import NUM_GRADES

_HOPE = 0.5  # standard deviations
_START_WEIGHT = 3.0  # tests that the start counts for; it fades as they do


class AcceptanceRates:
    """starts: α of each grade before its first test; None = what `base` says then, where every test
    is noted too. memory: tests until one weighs 1/e."""

    __slots__ = ("_accepted", "_base", "_keep", "_tested")

    def __init__(self, starts: Sequence[float | None], memory: int) -> None:
        assert len(starts) == NUM_GRADES
        self._base: AcceptanceRates | None = None
        self._keep = 1 - 1 / memory
        self._tested = [_START_WEIGHT] * NUM_GRADES
        self._accepted = [-1.0 if start is None else _START_WEIGHT * start for start in starts]

    def fork(self, memory: int) -> AcceptanceRates:
        """For one request: starts from these, and adds its tests to them."""
        child = AcceptanceRates([None] * NUM_GRADES, memory)
        child._base = self
        return child

    def rate(self, grade: int) -> float:
        """Estimated α of a grade, 0 < α < 1."""
        if self._accepted[grade] < 0:
            assert self._base is not None
            self._accepted[grade] = _START_WEIGHT * self._base.rate(grade)
        return self._accepted[grade] / self._tested[grade]

    def hopeful_rate(self, grade: int) -> float:
        """α if it is somewhat better than it looks: by less, the more was tested."""
        rate = self.rate(grade)
        return rate + _HOPE * math.sqrt(rate * (1 - rate) / self._tested[grade])

    def note(self, grades: Sequence[int], num_tested: int, num_accepted: int) -> None:
        """A round's tests, in order."""
        keep = self._keep
        for place in range(num_tested):
            grade = grades[place]
            self.rate(grade)
            self._tested[grade] = self._tested[grade] * keep + 1
            self._accepted[grade] = self._accepted[grade] * keep + (place < num_accepted)
        if self._base is not None:
            self._base.note(grades, num_tested, num_accepted)

    def fade(self) -> None:
        """The tests so far are old and the text may have changed: they count for a start."""
        for grade, tested in enumerate(self._tested):
            if tested > _START_WEIGHT:
                self._accepted[grade] *= _START_WEIGHT / tested
                self._tested[grade] = _START_WEIGHT
