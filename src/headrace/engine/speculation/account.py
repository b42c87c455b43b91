"""What speculation did: one round at a time, summed up per request and per engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpeculationAccount:
    """Counts of all rounds so far. A round is a sequence's part in one step, with drafts; a plain
    round is one that could have had some.

    num_drafted: drafts that steps computed. num_tested: those that were compared with the target's
    token (a round stops at its first miss). num_accepted: those that stayed; α = accepted ÷ tested.
    accepted_at[j]: rounds whose draft number j + 1 was accepted; tested_at[j]: … was tested.
    num_cut: drafts for which a step had no room. predicted_gain, measured_gain: speed ÷ speed
    without speculation, as the formula says it and as step times show it; None = not known.
    """

    num_rounds: int = 0
    num_plain_rounds: int = 0
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    num_cut: int = 0
    accepted_at: list[int] = field(default_factory=list)
    tested_at: list[int] = field(default_factory=list)
    predicted_gain: float | None = None
    measured_gain: float | None = None

    @property
    def acceptance_rate(self) -> float | None:
        """α = accepted ÷ tested; None before the first test."""
        return self.num_accepted / self.num_tested if self.num_tested else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted drafts per round."""
        return self.num_accepted / self.num_rounds if self.num_rounds else None

    def add(self, num_drafted: int, num_tested: int, num_accepted: int) -> None:
        """Notes a round. 0 ≤ accepted ≤ tested ≤ drafted."""
        assert 0 <= num_accepted <= num_tested <= num_drafted
        self.num_rounds += 1
        self.num_drafted += num_drafted
        self.num_tested += num_tested
        self.num_accepted += num_accepted
        missing = num_tested - len(self.tested_at)
        if missing > 0:
            self.tested_at += [0] * missing
            self.accepted_at += [0] * missing
        for position in range(num_tested):
            self.tested_at[position] += 1
        for position in range(num_accepted):
            self.accepted_at[position] += 1


@dataclass(frozen=True, slots=True)
class Round:
    """A sequence's part in one step. num_tokens: that it gained (accepted drafts and, unless it
    ended at one of them, one token of the target). account: of its request. sample_index: which of
    its samples."""

    request_id: int
    sample_index: int
    account: SpeculationAccount
    num_drafted: int
    num_tested: int
    num_accepted: int
    num_tokens: int
