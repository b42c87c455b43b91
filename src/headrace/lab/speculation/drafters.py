"""Drafters of known strength, and an engine whose drafter can be changed between requests.

    Wrong    guesses what the target never says: α = 0, the worst case
    Replay   guesses what the target said before: α = 1, the best case
    Noised   another drafter whose tokens are replaced at random: α · (1 − ε)
    Switch   the engine's drafter; passes everything on to the one that is chosen

No text depends on any of them (engine/speculation/drafter.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.engine.generation import Generation
from headrace.engine.model import OpenModel
from headrace.engine.speculation.drafter import Ask, Draft, Drafter


class Wrong:
    """Always proposes the token that `text` does not continue with. text: what the target says
    behind a prompt of num_prompt tokens."""

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids
        self.num_prompt = 0
        self.text: list[int] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """limit tokens, the first of which is wrong."""
        drafts = []
        for ask in asks:
            at = len(ask.generation.sequence.tokens) - self.num_prompt
            right = self.text[at] if at < len(self.text) else 0
            drafts.append(Draft([(right + 1) % self._num_ids] * ask.limit))
        return drafts

    def kept(self, generation: Generation, num_kept: int) -> None:
        """Learns nothing."""

    def forget(self, generation: Generation) -> None:
        """Holds nothing."""


class Replay(Wrong):
    """Always proposes what `text` continues with."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """limit tokens, or fewer where the text ends."""
        drafts = []
        for ask in asks:
            at = len(ask.generation.sequence.tokens) - self.num_prompt
            drafts.append(Draft(self.text[at : at + ask.limit]))
        return drafts


class Noised:
    """inner, each of whose tokens is replaced by a random id with probability `share`."""

    def __init__(self, inner: Drafter, share: float, num_ids: int, seed: int) -> None:
        self._inner = inner
        self._share = share
        self._num_ids = num_ids
        self._random = np.random.default_rng(seed)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """inner's drafts, spoilt."""
        drafts = self._inner.propose(asks)
        for draft in drafts:
            spoilt = self._random.random(len(draft.tokens)) < self._share
            others = self._random.integers(0, self._num_ids, len(draft.tokens))
            draft.tokens = [
                int(other) if bad else token
                for token, bad, other in zip(draft.tokens, spoilt, others, strict=True)
            ]
        return drafts

    def kept(self, generation: Generation, num_kept: int) -> None:
        """See Drafter."""
        self._inner.kept(generation, num_kept)

    def forget(self, generation: Generation) -> None:
        """See Drafter."""
        self._inner.forget(generation)


class Switch:
    """Passes everything on to `current`; change it only while no request runs."""

    def __init__(self, current: Drafter) -> None:
        self.current = current

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Drafter."""
        return self.current.propose(asks)

    def kept(self, generation: Generation, num_kept: int) -> None:
        """See Drafter."""
        self.current.kept(generation, num_kept)

    def forget(self, generation: Generation) -> None:
        """See Drafter."""
        self.current.forget(generation)


def early_exit(model: OpenModel, num_layers: int) -> OpenModel:
    """The model's own first layers with its final norm and head: a draft model for free. Shares the
    weights' memory until they are packed."""
    program = model.program
    windows = program.config.windows[:num_layers]
    config = replace(program.config, num_layers=num_layers, windows=windows)
    names = [spec.name for spec in program.family.weight_specs(config)]
    weights = {name: program.weights[name] for name in names}
    return replace(model, program=replace(program, config=config, weights=weights, identity=()))
