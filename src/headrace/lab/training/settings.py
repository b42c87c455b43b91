"""Settings of a training, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """steps: in all. rate: the peak learning rate. floor: the last rate as a share of it. clip: the
    largest norm of all gradients together. save_every, report_every: in steps. Raises UsageError
    naming a value that is out of range."""

    steps: int
    rate: float = 3e-3
    warmup: int = 50
    floor: float = 0.1
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float = 1.0
    save_every: int = 200
    report_every: int = 20

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("warmup", 0), ("save_every", 1), ("report_every", 1)):
            if getattr(self, name) < low:
                raise UsageError(f"{name} is {getattr(self, name)}; it takes {low} or more.")
        for name in ("rate", "clip", "eps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} is {getattr(self, name)}; it takes a positive number.")
        if not 0 <= self.floor <= 1 or self.decay < 0:
            raise UsageError("floor lies in 0 … 1 and decay is not negative.")
