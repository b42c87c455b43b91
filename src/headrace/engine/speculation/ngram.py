"""NgramDrafter: guesses that the text goes on as it did where it stood before; no model needed."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.generation import Generation
from headrace.engine.speculation.copying import CopyTracker, Grade
from headrace.engine.speculation.drafter import NUM_GRADES, Ask, Draft

#: Most drafts of a round that pay with the surest of them.
MAX_DRAFTS = 32
#: α of each grade before anything is known: what edits of Python files and prose of a model showed.
PRIORS = {
    Grade.BLIND: 0.5, Grade.RESUMED: 0.5, Grade.RULE: 0.7, Grade.RUN_2: 0.35, Grade.RUN_3: 0.5,
    Grade.RUN_4: 0.65, Grade.RUN_6: 0.75, Grade.RUN_9: 0.85, Grade.RUN_16: 0.95,
}  # fmt: skip


def priors() -> list[float]:
    """PRIORS by grade, as a controller takes them."""
    return [PRIORS.get(Grade(g), 0.5) if g < len(Grade) else 0.5 for g in range(NUM_GRADES)]


class NgramDrafter:
    """A Drafter whose drafts are point masses. Some 12 bytes per token of every open sample."""

    def __init__(self) -> None:
        self._trackers: dict[Generation, CopyTracker] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Drafter."""
        drafts = []
        for ask in asks:
            tracker = self._trackers.get(ask.generation)
            if tracker is None:
                tracker = self._trackers[ask.generation] = CopyTracker()
            tokens, grades = tracker.propose(ask.generation.sequence.tokens, ask.limit)
            drafts.append(Draft(tokens, None, grades))
        return drafts

    def kept(self, generation: Generation, num_kept: int) -> None:
        """Learns from sequence.tokens when it is asked next."""

    def forget(self, generation: Generation) -> None:
        """See Drafter."""
        self._trackers.pop(generation, None)
