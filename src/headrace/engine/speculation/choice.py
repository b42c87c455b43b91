"""What may be chosen about speculation: of an engine as its default, of a request for itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: Most drafts of one round.
MAX_DRAFT_TOKENS = 64


class Speculative(Enum):
    """Who guesses."""

    OFF = "off"
    NGRAM = "ngram"  # what followed the same tokens earlier in prompt and output
    DRAFT = "draft"  # a smaller model


class Acceptance(Enum):
    """Which drafts stay; see rounds.py."""

    COUPLED = "coupled"  # those that plain decoding draws: the same text
    REJECTION = "rejection"  # more of them: the same distribution


@dataclass(frozen=True, slots=True)
class Choice:
    """num_draft_tokens: drafts of every round, None = as many as pay (controller.py)."""

    speculative: Speculative = Speculative.OFF
    num_draft_tokens: int | None = None
    acceptance: Acceptance = Acceptance.COUPLED

    def changed(
        self, speculative: str | None, num_draft_tokens: int | None, acceptance: str | None
    ) -> Choice:
        """A request's own choice; None = as it is. The names were checked before."""
        if speculative is None and num_draft_tokens is None and acceptance is None:
            return self
        return Choice(
            self.speculative if speculative is None else Speculative(speculative),
            self.num_draft_tokens if num_draft_tokens is None else num_draft_tokens,
            self.acceptance if acceptance is None else Acceptance(acceptance),
        )


#: What is in force where nobody chose.
NO_SPECULATION = Choice()
