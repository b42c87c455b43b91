"""Guess: one sample's draft in the making, with everything that drawing moves on in forks.

A draft token is drawn as the target's would be: by the request's parameters, under its constraint's
mask, after the penalties of the tokens before it, drafted ones included; for the coupled rule also
with the same noise at the same position, for the rejection rule with a stream of its own.
"""

from __future__ import annotations

from headrace.engine.request import Sequence
from headrace.engine.sampler import SamplerState, TokenMask
from headrace.engine.speculation.drafter import Ask, Distribution, Draft


class Guess:
    """sequence: the draft model's, whose tokens go on with the draft. limit: most tokens. draft:
    grows with every `accept`. state: to draw with. chance: that all of it stands, as far as the
    draft model can tell; least_chance, wants_distribution: see Ask. Any member may raise what a
    constraint raises.
    """

    __slots__ = (
        "_constraint",
        "_counts",
        "_end_ids",
        "_limit",
        "_sequence",
        "chance",
        "draft",
        "least_chance",
        "state",
        "wants_distribution",
    )

    def __init__(self, ask: Ask, sequence: Sequence, limit: int, draft: Draft) -> None:
        generation = ask.generation
        params, constraint = generation.request.params, generation.constraint
        self._sequence = sequence
        self._limit = limit
        self.draft = draft
        self.chance = 1.0
        self.least_chance = ask.least_chance
        self.wants_distribution = ask.wants_distributions
        if self.wants_distribution:
            draft.distributions = []
        self._counts = params.counts_output
        state = generation.sampler_state
        self.state: SamplerState = state.fork(generation.index) if self._counts else state
        self._constraint = None if constraint is None else constraint.fork()
        self._end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self._end_ids |= generation.request.eos_ids

    def mask(self) -> TokenMask | None:
        """Ids that the constraint allows next; None = any."""
        return None if self._constraint is None else self._constraint.mask()

    def accept(self, token: int, drawn_from: Distribution | None = None) -> bool:
        """Moves on by a draft token; whether another one is wanted, behind this one computed.

        With the coupled rule an end id is no draft: the row that would test it draws it anyway.
        With the rejection rule every draft has to be tested, whatever it is, or the rest is biased.
        """
        is_end = token in self._end_ids
        if is_end and not self.wants_distribution:
            return False
        self.draft.tokens.append(token)
        if drawn_from is not None and self.draft.distributions is not None:
            self.draft.distributions.append(drawn_from)
        if is_end or len(self.draft.tokens) >= self._limit or self.chance < self.least_chance:
            return False
        if self._counts:
            self.state.accept(token)
        if self._constraint is not None:
            self._constraint.accept(token)
            if self._constraint.finished:
                return False
        self._sequence.tokens.append(token)
        return True
