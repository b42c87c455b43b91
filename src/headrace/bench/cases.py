"""Cases: what one measurement computes. Expanded from the lists of the command line.

    pp512          a prompt of 512 tokens, until its next token is drawn: PP and TTFT
    tg64           64 steps of one token each: TG and TPOT
    pp128+tg64 ×32 32 sequences together, from the first prompt to the last token: throughput

A depth d puts d positions into the cache first, which is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from headrace.errors import UsageError

#: The seed of the prompts' token ids.
PROMPT_SEED = 1


class Kind(Enum):
    """What a case measures."""

    PREFILL = "pp"
    DECODE = "tg"
    BATCH = "pp+tg"


@dataclass(frozen=True, slots=True)
class Case:
    """num_prompt, num_output: tokens of each sequence that are measured (0 = none). depth:
    positions in the cache before. batch: sequences at the same time."""

    kind: Kind
    num_prompt: int
    num_output: int
    depth: int = 0
    batch: int = 1

    @property
    def test(self) -> str:
        """ "pp512", "tg64", "pp128+tg64"."""
        match self.kind:
            case Kind.PREFILL:
                return f"pp{self.num_prompt}"
            case Kind.DECODE:
                return f"tg{self.num_output}"
            case Kind.BATCH:
                return f"pp{self.num_prompt}+tg{self.num_output}"

    @property
    def label(self) -> str:
        """The test with what is not usual about it, for people."""
        depth = f" @{self.depth}" if self.depth else ""
        batch = f" ×{self.batch}" if self.batch > 1 else ""
        return self.test + depth + batch

    @property
    def context(self) -> int:
        """Tokens that a sequence ends with."""
        return max(self.depth, 1 if self.kind is Kind.DECODE else 0) + (
            self.num_prompt + self.num_output + 1
        )

    @property
    def start(self) -> int:
        """Positions in the cache when decoding starts: steps see start + 1, start + 2, …"""
        return self.depth + self.num_prompt if self.kind is Kind.BATCH else max(self.depth, 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: every combination. Prompts and outputs alone for a batch of 1 (0 = leave
    out), together for larger ones, whose prompts have batch_prompt tokens (None = like prompts).
    Raises UsageError naming a number that is out of range."""

    prompts: tuple[int, ...] = (512,)
    outputs: tuple[int, ...] = (128,)
    depths: tuple[int, ...] = (0,)
    batches: tuple[int, ...] = (1,)
    batch_prompts: tuple[int, ...] | None = None
    repetitions: int = 5

    def __post_init__(self) -> None:
        for flag, values, low, high in (
            ("-p", self.prompts, 0, 1 << 20),
            ("-n", self.outputs, 0, 1 << 20),
            ("-d", self.depths, 0, 1 << 20),
            ("-npl", self.batches, 1, 4096),
            ("-npp", self.batch_prompts or (), 1, 1 << 20),
            ("-r", (self.repetitions,), 1, 1000),
        ):
            for value in values:
                if not low <= value <= high:
                    raise UsageError(f"{flag} {value} is out of range: {low} … {high}.")
        if not self.cases():
            raise UsageError("There is nothing to measure: give -p or -n a number above 0.")

    def cases(self) -> tuple[Case, ...]:
        """All cases, each once, small batches first."""
        found: dict[Case, None] = {}
        for batch in sorted(set(self.batches)):
            for depth in self.depths:
                found |= dict.fromkeys(
                    self._single(depth) if batch == 1 else self._together(depth, batch)
                )
        return tuple(found)

    def _single(self, depth: int) -> list[Case]:
        prompts = [Case(Kind.PREFILL, p, 0, depth) for p in self.prompts if p]
        return prompts + [Case(Kind.DECODE, 0, n, depth) for n in self.outputs if n]

    def _together(self, depth: int, batch: int) -> list[Case]:
        lengths = self.prompts if self.batch_prompts is None else self.batch_prompts
        return [
            Case(Kind.BATCH, p, n, depth, batch) for p in lengths for n in self.outputs if p and n
        ]


def prompt_ids(num_ids: int, length: int, sequence: int = 0) -> list[int]:
    """Token ids below num_ids, the same in every run; another `sequence`, other ids."""
    rng = np.random.default_rng((PROMPT_SEED, sequence))
    return [int(i) for i in rng.integers(0, num_ids, length)]


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """ "512,1024" → (512, 1024), duplicates dropped. Raises UsageError naming the flag."""
    try:
        values: Sequence[int] = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag} takes whole numbers with commas, not {text!r}.") from None
    return tuple(dict.fromkeys(values))
