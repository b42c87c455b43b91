"""Gains: how much faster a request went than without speculation, predicted and measured.

Both are tokens × (seconds of a plain step) ÷ seconds. Predicted: with the tokens and seconds that
were expected when γ was chosen, or, where γ was fixed, by the formula with the α so far. Measured:
with the tokens that came and the time that went by. A plain step is one of the same sequences
without drafts; its time is a median of steps of that many rows (costs.py), of the same minutes.
"""

from __future__ import annotations

from headrace.engine.speculation.account import Round, SpeculationAccount
from headrace.engine.speculation.controller import StepCost
from headrace.engine.speculation.gamma import StepTimes

_HICCUP = 1.5  # of the expected time: what is longer is not what speculation costs


class Gains:
    """Sums over the rounds of a request. Writes its account."""

    __slots__ = ("_account", "_came_s", "_expected_s", "_num_plain", "_predicted_s", "_took_s")

    def __init__(self, account: SpeculationAccount) -> None:
        self._account = account
        self._num_plain = 0  # rounds that were counted
        self._expected_s = self._predicted_s = 0.0  # expected tokens in plain seconds; seconds
        self._came_s = self._took_s = 0.0  # the same, as they came

    def note(
        self,
        round_: Round,
        cost: StepCost,
        times: StepTimes,
        expected: tuple[float, float] | None,
    ) -> None:
        """A round, and the plain ones since the last. expected: (its tokens, the step's
        seconds)."""
        plain_s, step_s = times.step(cost.num_seqs), times.step(cost.num_rows)
        if expected is None:
            rate = self._account.acceptance_rate or 0.0
            tokens = sum(rate**depth for depth in range(round_.num_drafted + 1))
            expected = (tokens, step_s + times.drafting(round_.num_drafted))
        self._expected_s += expected[0] * plain_s
        self._predicted_s += expected[1]
        self._came_s += round_.num_tokens * plain_s
        self._took_s += min(cost.step_s, _HICCUP * step_s) + cost.draft_s
        self.note_plain(plain_s)

    def note_plain(self, plain_s: float) -> None:
        """Plain rounds that were not noted yet: they gain what they cost."""
        account = self._account
        seconds = (account.num_plain_rounds - self._num_plain) * plain_s
        self._num_plain = account.num_plain_rounds
        self._expected_s += seconds
        self._predicted_s += seconds
        self._came_s += seconds
        self._took_s += seconds
        if self._took_s:
            account.predicted_gain = self._expected_s / self._predicted_s
            account.measured_gain = self._came_s / self._took_s
