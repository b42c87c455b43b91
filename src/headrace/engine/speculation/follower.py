"""Follower: the draft model's side of one sample: which ids it has computed, on which blocks.

    target's tokens   |<------- kept so far ------->|
    follower          |<--- kept --->|<-- its own drafts -->|
    after follow()    |<------- kept so far ------->|     computed = up to the first difference

Nothing has to be told about what became of a draft: the target's tokens say it. This file knows no
executor and no pools.
"""

from __future__ import annotations

import sys

from headrace.engine.generation import Generation
from headrace.engine.request import Sequence
from headrace.engine.speculation.guess import Guess

#: A sample that lacks no more rows than this drafts in the same call; another catches up first.
MAX_READY_ROWS = 32
#: More rows than this for each token still to come can never be earned back.
MAX_ROWS_PER_TOKEN = 8


class Follower:
    """sequence: the draft model's own, with its own blocks and counts; its tokens are the target's,
    then drafts. guess: the draft in the making. off: drafts no more (a step failed, or the draft
    model lacks an id). asked_at: the number of the call that asked last.
    """

    __slots__ = ("_num_kept", "asked_at", "generation", "guess", "off", "sequence")

    def __init__(self, generation: Generation) -> None:
        target = generation.sequence
        self.generation = generation
        self.sequence = Sequence(
            target.order,
            [],
            sys.maxsize,
            num_prompt_tokens=target.num_prompt_tokens,
            rank=target.place[0],
            salt=target.salt,
        )
        self.sequence.owner = self
        self.guess: Guess | None = None
        self.off = False
        self.asked_at = 0
        self._num_kept = 0  # leading tokens that are known to be the target's

    @property
    def num_missing(self) -> int:
        """Rows to compute before a draft can be drawn."""
        return self.sequence.num_wanted

    @property
    def is_behind(self) -> bool:
        """Whether it has to catch up before it drafts."""
        return self.sequence.num_wanted > MAX_READY_ROWS

    @property
    def can_pay(self) -> bool:
        """Whether catching up can be earned back by the tokens that may still come."""
        target = self.generation.sequence
        left = target.max_num_tokens - target.num_tokens
        return self.sequence.num_wanted <= MAX_ROWS_PER_TOKEN * left

    def follow(self, num_ids: int) -> None:
        """Takes over the target's tokens and cuts what turned out otherwise. `off` where an id is
        not below num_ids."""
        wanted, sequence = self.generation.sequence.tokens, self.sequence
        own, same = sequence.tokens, self._num_kept
        end = min(len(own), len(wanted))
        while same < end and own[same] == wanted[same]:
            same += 1
        new = wanted[same:]
        own[same:] = new
        self._num_kept = len(wanted)
        # The last row is computed again where the target has not moved on: its logits are wanted.
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, same, len(wanted) - 1)
        sequence.num_stored_tokens = min(sequence.num_stored_tokens, same)
        if new and max(new) >= num_ids:
            self.off = True


def follower_of(sequence: Sequence) -> Follower:
    """Whose sequence of the draft model it is."""
    owner = sequence.owner
    assert isinstance(owner, Follower)
    return owner
