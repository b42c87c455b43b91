"""What a run is to do: data, load, target; checked before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.bench.serve.arrivals import check_rate
from headrace.bench.serve.dataset import DATASETS, Lengths, Prefixes
from headrace.bench.serve.target import Target
from headrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class Data:
    """Where prompts come from. trace: arrival times too. count: requests (None = a file's own
    number, else 100). vocabulary: ids of random prompts lie in [0, so many) (None = ask the server,
    else ids that every vocabulary in use has). text_prompts: words instead of ids, for servers that
    take no ids."""

    name: str = "random"
    path: Path | None = None
    trace: Path | None = None
    count: int | None = None
    lengths: Lengths = field(default_factory=Lengths)
    prefixes: Prefixes = field(default_factory=Prefixes)
    vocabulary: int | None = None
    text_prompts: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in DATASETS:
            raise UsageError(
                f"--dataset-name must be one of {', '.join(DATASETS)}, not {self.name!r}."
            )
        if self.name in ("file", "sharegpt") and self.path is None:
            raise UsageError(f"--dataset-name {self.name} needs --dataset-path FILE.")
        if self.path is not None and self.name not in ("file", "sharegpt"):
            raise UsageError("--dataset-path goes with --dataset-name file or sharegpt.")
        if self.count is not None and not 1 <= self.count <= 1_000_000:
            raise UsageError(f"--num-prompts must be 1 … 1000000, not {self.count}.")
        if self.vocabulary is not None and not 2 <= self.vocabulary <= 1 << 24:
            raise UsageError(f"--vocab-size must be 2 … {1 << 24}, not {self.vocabulary}.")

    @property
    def is_random(self) -> bool:
        """Prompts that no model expects: an end of text in the answers means nothing."""
        return self.name in ("random", "prefix_repetition")


@dataclass(frozen=True, slots=True)
class Load:
    """How fast. max_concurrency: requests in flight at most (None = no bound). request_rate: per
    second; inf = as fast as max_concurrency lets them, else all at once."""

    max_concurrency: int | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    num_warmups: int = 1
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_rate(self.request_rate, self.burstiness)
        for flag, value, low, high in (
            ("--max-concurrency", self.max_concurrency or 1, 1, 100_000),
            ("--num-warmups", self.num_warmups, 0, 10_000),
            ("--timeout", self.timeout_s, 0.001, 1e6),
        ):
            if not low <= value <= high:
                raise UsageError(f"{flag} must be {low:g} … {high:g}, not {value:g}.")
        if self.max_concurrency == 0:
            raise UsageError("--max-concurrency must be 1 … 100000, not 0.")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything of one run. model: None = the first that the server lists. ignore_eos: None = on
    for random data and left to the server otherwise."""

    target: Target
    data: Data
    load: Load
    endpoint: str
    model: str | None = None
    temperature: float = 0.0
    ignore_eos: bool | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    percentiles: tuple[float, ...] = (50, 90, 95, 99)
    targets: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"--temperature must be 0 or more, not {self.temperature:g}.")
