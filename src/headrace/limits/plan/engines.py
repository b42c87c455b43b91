"""Which engine suits a plan, and why. Facts about other engines carry their source."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.limits.plan.hardware import Hardware


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """One engine. suits: whether it can serve the plan. why: one sentence. url: where the fact
    stands."""

    engine: str
    suits: bool
    why: str
    url: str = ""


def engines_for(
    hardware: Hardware, *, architecture: str, weight_format: str, concurrency: int
) -> tuple[EngineChoice, ...]:
    """Engines for a model on some hardware, the best first, those that do not suit last.

    architecture: a family's name ("llama", "gemma3", …). weight_format: of most matrices ("BF16",
    "Q4_K", "FP8", "INT4"). concurrency: requests at once."""
    return ()
