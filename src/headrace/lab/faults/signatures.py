"""Signatures: where and when a faulty engine differs from a sound one, and what that suggests.

    situations (situations.py) × positions ─ differences ─▶ Signature ─ family_of ─▶ a family

The rule looks at nothing but the signature; it never learns which fault was planted. Pure
functions on logits; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.lab.faults.situations import Seen, Text

#: What a signature can point at, with the words of docs/verify.md.
FAMILIES: Mapping[str, str] = {
    "nothing": "every difference is exactly 0",
    "position": "first token right, later ones wrong: cache position or RoPE offset",
    "mask": "wrong inside the prompt, and another way when it is cut: which positions are seen",
    "window": "right up to the width of the window, wrong after it: the window's edge",
    "mathematics": "wrong from the first position, the same in every situation: head map, norms",
    "fusion": "wrong until fusion is off: a fused record",
    "chunks": "right in one piece, wrong in several: a chunk counted and not computed",
    "batch": "right until others come, or a new block: order of rows, block tables, freed blocks",
    "match": "right from nothing, wrong where a part was cached: the length of a match",
    "restore": "right until the next start: which block went to which place",
    "drafts": "right without guesses, wrong after one: what a rejected draft leaves behind",
    "noise": "logits right, sampled text wrong: what the noise is keyed with",
    "unknown": "no rule fits",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """One situation. delta: see largest_difference. num_prompt: positions below it belong to the
    prompt. text_differs: drawn tokens differ. error: what the faulty run raised."""

    delta: Mapping[int, float]
    num_prompt: int
    text_differs: bool = False
    error: str | None = None

    @property
    def wrong(self) -> bool:
        return self.error is not None or any(d > 0 for d in self.delta.values())

    @property
    def worst(self) -> float:
        return float("inf") if self.error is not None else max(self.delta.values(), default=0.0)

    @property
    def in_prompt(self) -> float:
        """Worst at positions that predict tokens of the prompt."""
        return max((d for p, d in self.delta.items() if p < self.num_prompt - 1), default=0.0)

    @property
    def at_first(self) -> float:
        """Where the first new token is drawn."""
        return self.delta.get(self.num_prompt - 1, 0.0)

    @property
    def later(self) -> float:
        return max((d for p, d in self.delta.items() if p >= self.num_prompt), default=0.0)

    @property
    def first_wrong(self) -> int | None:
        return min((p for p, d in self.delta.items() if d > 0), default=None)


@dataclass(frozen=True, slots=True)
class Signature:
    """situations: name → profile against the sound run. consistent: whether the faulty engine gives
    the prompt the same bits in pieces as in one. window: the model's narrowest, or None."""

    situations: Mapping[str, Profile]
    consistent: bool
    window: int | None = None

    @property
    def empty(self) -> bool:
        return not any(p.wrong or p.text_differs for p in self.situations.values())


def largest_difference(sound: Seen, other: Seen) -> dict[int, float]:
    """position → max |Δlogit|, at the positions that both computed after the same text; infinite
    where bits differ without a number, and when they have no position in common."""
    same = 0
    while same < min(len(sound.tokens), len(other.tokens)) and (
        sound.tokens[same] == other.tokens[same]
    ):
        same += 1
    result = {}
    for rank, (position, row) in enumerate(sorted(sound.logits.items())):
        if sound.tokens and rank > same:
            break
        seen = other.logits.get(position)
        if seen is None:
            continue
        if row.tobytes() == seen.tobytes():
            result[position] = 0.0
        else:
            delta = float(np.max(np.abs(row.astype(np.float64) - seen.astype(np.float64))))
            result[position] = delta if delta > 0 else float("inf")
    return result if result or not sound.logits else {min(sound.logits): float("inf")}


def signature(
    sound: Mapping[str, Seen], faulty: Mapping[str, Seen], text: Text, window: int | None = None
) -> Signature:
    """The faulty engine's situations against the sound one's."""
    situations = {
        name: Profile(
            largest_difference(sound[name], seen),
            text.num_prompt,
            seen.tokens != sound[name].tokens,
            seen.error,
        )
        for name, seen in faulty.items()
    }
    cut = largest_difference(faulty["alone"], faulty["in pieces"])
    consistent = not any(d for position, d in cut.items() if position < text.num_prompt)
    return Signature(situations, consistent, window)


def family_of(signature: Signature) -> str:
    """What the symptoms point at: a key of FAMILIES."""
    profiles = signature.situations
    alone = profiles["alone"]
    if alone.wrong:
        return _family_alone(signature, alone)
    if profiles["in pieces"].wrong:
        return "chunks"
    if any(profiles[name].wrong for name in ("2 at once", "8 at once", "come and go")):
        return "batch"
    if profiles["cached"].wrong:
        return "match"
    if profiles["restored"].wrong:
        return "restore"
    if profiles["guesses"].wrong:
        return "drafts"
    if profiles["sampled"].text_differs:
        return "noise"
    if profiles["guesses"].text_differs:
        return "drafts"
    return "unknown" if profiles["unfused"].wrong else "nothing"


def _family_alone(signature: Signature, alone: Profile) -> str:
    """Wrong even for one text alone: where, and what makes it right again."""
    if not signature.situations["unfused"].wrong:
        return "fusion"
    if alone.error is None and alone.in_prompt == alone.at_first == 0:
        # A text whose blocks are given back too early may take them itself, at a block's edge.
        return "position" if signature.consistent else "batch"
    first = alone.first_wrong
    if signature.window is not None and first is not None and first >= signature.window:
        return "window"
    if not signature.consistent:
        return "mask"
    return "mathematics"
