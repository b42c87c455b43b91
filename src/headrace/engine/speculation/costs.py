"""CostCurve: seconds of a step by its number of rows, learned on a machine that others share too.

    seconds(n) = pace · shape(n)

`pace` is the speed of the moment (bandwidth of a shared machine wanders by half within minutes,
contexts grow); it follows every sample and moves all sizes alike. `shape` is what decisions need:
how much longer n rows take than one. Each size keeps its last samples, divided by the pace at their
time, and a low quantile of them counts, so hiccups move nothing. Sizes that were never or long ago
seen follow the prior, corrected by what their neighbours showed.

Knows sizes and seconds only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_EXACT = 64  # sizes up to here have a cell of their own
_PER_OCTAVE = 8  # cells above
_NUM_CELLS = _EXACT + _PER_OCTAVE * 10
_SAMPLES = 15  # kept per cell
_QUANTILE = 0.3  # of them; what disturbs a step makes it longer
_FADING = 400.0  # samples of all cells, until one weighs 1/e
_PACE_RATE = 0.3
_PACE_CLIP = 0.04  # of the log of a surprise; small, so that pace and shapes agree on what is low
_NEW = 2.0  # samples, with which a size is half known
_CLIP = 0.3  # of the log of time ÷ what was expected; a hiccup counts for this much at most
_FAR = 0.4  # what a neighbour's sample weighs, next to one of the size itself
_PRIOR = 0.02  # what the prior weighs
_REFRESH = 16  # samples between two looks at all cells


def _cell(size: int) -> int:
    if size <= _EXACT:
        return size - 1
    return min(_EXACT - 1 + round(_PER_OCTAVE * math.log2(size / _EXACT)), _NUM_CELLS - 1)


def _size(cell: int) -> float:
    if cell < _EXACT:
        return cell + 1
    return float(_EXACT * 2.0 ** ((cell - _EXACT + 1) / _PER_OCTAVE))


class CostCurve:
    """prior: size → relative time, before anything is known; only its ratios matter."""

    def __init__(self, prior: Callable[[float], float]) -> None:
        self._log_prior = [math.log(prior(_size(cell))) for cell in range(_NUM_CELLS)]
        self._samples: dict[int, list[tuple[int, float]]] = {}  # cell → (when, log of shape)
        self._single: dict[int, float] = {}  # cell → what its first sample is taken for
        self._known: list[tuple[int, float, float, float]] = []  # cell, place, correction, weight
        self._confidence: dict[int, float] = {}  # by cell: the weight
        self._shape: dict[int, float] = {}  # by cell, since the last look
        self._log_pace = 0.0
        self._num_samples = 0
        self._next_look = 1

    @property
    def num_samples(self) -> int:
        return self._num_samples

    @property
    def pace(self) -> float:
        """Seconds of a step of shape 1 (the prior's unit) at the moment."""
        return math.exp(self._log_pace)

    def shape(self, size: int) -> float:
        """Time of `size` ≥ 1 rows in units of `pace`."""
        cell = _cell(size)
        found = self._shape.get(cell)
        if found is None:
            found = self._shape[cell] = self._shape_of(cell)
        return found

    def seconds(self, size: int) -> float:
        """Expected seconds at today's pace; meaningless before the first sample."""
        return self.pace * self.shape(size)

    def confidence(self, size: int) -> float:
        """How many fresh samples the size itself had at the last look."""
        return self._confidence.get(_cell(size), 0.0)

    def record(self, size: int, seconds: float) -> None:
        """Notes a step."""
        if seconds <= 0:
            return
        cell = _cell(size)
        log_time, log_shape = math.log(seconds), math.log(self.shape(size))
        surprise = log_time - self._log_pace - log_shape
        if self._num_samples == 0:
            self._log_pace += surprise
        else:
            # Only a size that is known can tell that the machine's pace has changed.
            known = self._confidence.get(cell, 0.0)
            rate = _PACE_RATE * known / (known + _NEW)
            rate *= 2 * (_QUANTILE if surprise > 0 else 1 - _QUANTILE)  # as shapes are low ones
            self._log_pace += rate * max(-_PACE_CLIP, min(surprise, _PACE_CLIP))
        self._num_samples += 1
        samples = self._samples.setdefault(cell, [])
        samples.append((self._num_samples, log_time - self._log_pace))
        if len(samples) > _SAMPLES:
            del samples[0]
        if len(samples) == 1:  # a hiccup perhaps: believed only so far
            (seen,) = samples
            value = max(log_shape - _CLIP, min(seen[1], log_shape + _CLIP))
            self._single[cell] = value
        if self._num_samples >= self._next_look or len(samples) <= 3:
            self._next_look = self._num_samples + min(_REFRESH, self._num_samples)
            self._look()

    def _weight(self, samples: list[tuple[int, float]]) -> float:
        return sum(math.exp((when - self._num_samples) / _FADING) for when, _ in samples)

    def _look(self) -> None:
        """Takes the samples in; shapes are made of them when asked for."""
        self._shape.clear()
        self._confidence = {c: self._weight(samples) for c, samples in self._samples.items()}
        self._known = [
            (
                cell,
                math.log2(_size(cell)),
                self._value(cell, samples) - self._log_prior[cell],
                self._confidence[cell],
            )
            for cell, samples in self._samples.items()
        ]

    def _value(self, cell: int, samples: list[tuple[int, float]]) -> float:
        if len(samples) == 1:
            return self._single[cell]
        return sorted(value for _, value in samples)[int(_QUANTILE * len(samples))]

    def _shape_of(self, cell: int) -> float:
        """The prior, corrected by the size's own samples and, much less, by those around it."""
        place = math.log2(_size(cell))
        total, weights = 0.0, _PRIOR
        for other, other_place, correction, weight in self._known:
            if other == cell:
                weight *= weight / (weight + 1)  # one sample alone may be a hiccup
            else:
                distance = other_place - place
                weight *= _FAR / (1 + 16 * distance * distance)
            total += weight * correction
            weights += weight
        return math.exp(self._log_prior[cell] + total / weights)
