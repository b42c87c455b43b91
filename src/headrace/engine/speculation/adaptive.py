"""AdaptiveController: as many drafts as pay, and none where none do.

A round with γ drafts is expected to gain 1 + α + α² + … + α^γ tokens and to cost γ·c + v(γ+1), in
units of a plain step. What is chosen has the largest ratio; with one α for all drafts that is
(1 − α^(γ+1)) / ((1 − α)(γ·c + v(γ+1))). α is estimated per request (acceptance.py), with an α of
its own for each grade of drafts; c and v are measured step by step (costs.py). Sequences that
decode together share a step, so their rows are chosen together: drafts enter in the order of the
chance that they are reached and accepted, as long as tokens per second grow.

Where nothing pays, a request is tried again after some rounds, and ever more rarely: a text may
change, but a lost probe costs a row, and a draft model must read all that it missed.

Counts and times in, counts out: no token, no logit, no randomness; the choice is made before the
round's samples are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.engine.speculation.acceptance import AcceptanceRates
from headrace.engine.speculation.account import Round, SpeculationAccount
from headrace.engine.speculation.controller import StepCost
from headrace.engine.speculation.costs import CostCurve
from headrace.engine.speculation.drafter import NUM_GRADES, Ask, Draft

_MIN_GAIN = 1.01  # expected; less is not worth the noise of its estimate
_FOLLOW_UP = 2  # drafts of the probe right after one that was accepted
_MIN_CHANCE = 0.02  # of a draft to be reached and accepted
_EXPLORE_EVERY = 16  # rounds with drafts; at first more often
_OWN_MEMORY, _ALL_MEMORY = 64, 1024  # tests that α of a request, of the engine, goes back
_SURE = 8  # samples, below which nothing is given up that has a fair chance
_FAIR = 0.5
_WELL_KNOWN = 3  # fresh samples of a number of rows
_EXPLORE_LOSS = 1.15  # the best ratio over its own, at most
_HICCUP = 1.5  # of the expected time: what is longer is not what speculation costs
_ROW_COST = 0.1  # of a further row, before anything is measured
_DRAFT_COST = 0.3  # of a draft, likewise


@dataclass(slots=True)
class Choice:
    """counts: drafts for each sequence. tokens, seconds: expected of the whole step; plain_seconds:
    of the same step without drafts."""

    counts: list[int]
    tokens: float
    seconds: float
    plain_seconds: float


def choose(
    chances: Sequence[Sequence[float]],
    num_running: int,
    step_seconds: Callable[[int], float],
    draft_seconds: Callable[[int], float],
    total: int | None = None,
) -> Choice:
    """The counts of drafts with the most expected tokens per second.

    chances[i][k]: that draft k of sequence i is reached and accepted, falling in k. step_seconds:
    of a step by its rows, draft_seconds: of drafting by the longest draft. total: take that many
    drafts instead.
    """
    order = sorted(
        (-chance, depth, index)
        for index, row in enumerate(chances)
        for depth, chance in enumerate(row, 1)
    )
    tokens = float(num_running)
    plain_seconds = step_seconds(num_running)
    best = (tokens, plain_seconds, 0)
    best_ratio = tokens / plain_seconds * _MIN_GAIN
    deepest = 0
    for count, (chance, depth, _) in enumerate(order, 1):
        tokens -= chance
        deepest = max(deepest, depth)
        seconds = step_seconds(num_running + count) + draft_seconds(deepest)
        if total == 0:
            break
        if count == total if total is not None else tokens / seconds > best_ratio:
            best, best_ratio = (tokens, seconds, count), tokens / seconds
    counts = [0] * len(chances)
    for _, _, index in order[: best[2]]:
        counts[index] += 1
    return Choice(counts, best[0], best[1], plain_seconds)


@dataclass(slots=True)
class _State:
    """What is known of one sample. idle: rounds since its last draft; probe_at: of them, when it
    gets probe_size all the same. is_new, is_behind: a draft model has read nothing of it, or not
    what came last. grades: of the drafts under way. expected: of the round under way, its tokens in
    seconds of plain decoding, and its seconds; sums: of those, and of what came (the gains)."""

    rates: AcceptanceRates
    idle: int = 0
    probe_at: int = 0
    probe_size: int = 1
    is_probe: bool = False
    is_new: bool = True
    is_behind: bool = True
    grades: Sequence[int] = ()
    expected: tuple[float, float] | None = None
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)


@dataclass(frozen=True, slots=True)
class _Probing:
    """Rounds without drafts before a probe: the first time, how many times as many after each that
    was lost, and the most."""

    first: int
    growth: int
    last: int


_PROBING_FREE = _Probing(16, 2, 256)
_PROBING_MODEL = _Probing(64, 4, 1024)


class AdaptiveController:
    """One per drafter of an engine. priors: α of each grade, before anything is known. max_drafts:
    of a round. is_free: drafting costs next to nothing, so γ is chosen when the drafts and their
    grades are there; otherwise before they are made."""

    def __init__(self, priors: Sequence[float], max_drafts: int, *, is_free: bool) -> None:
        assert len(priors) == NUM_GRADES
        self._max_drafts = max_drafts
        self._is_free = is_free
        self._probing = _PROBING_FREE if is_free else _PROBING_MODEL
        self._steps = CostCurve(lambda size: 1 + _ROW_COST * (size - 1))
        self._drafting = CostCurve(lambda size: size)
        self._rates = AcceptanceRates(priors, _ALL_MEMORY)
        self._states: dict[int, dict[int, _State]] = {}  # request → sample
        self._num_rounds = 0  # with drafts
        self._num_running = 1
        self._deepest = 0  # of the drafts under way
        self._draft_is_typical = False  # the draft model had nothing to read that it had missed

    # ---- Controller -------------------------------------------------------------------------

    def num_drafts(self, asks: Sequence[Ask], num_running: int) -> list[int]:
        """See Controller."""
        self._num_running = num_running
        self._deepest = 0
        limits = [min(ask.limit, self._max_drafts) for ask in asks]
        if self._is_free:
            return limits
        states = [self._state(ask) for ask in asks]
        counts = self._decide(states, [[0] * limit for limit in limits])
        drafting = [state for state, count in zip(states, counts, strict=True) if count]
        self._deepest = max(counts, default=0)
        self._draft_is_typical = not any(state.is_behind for state in drafting)
        if any(state.is_new for state in drafting):
            self._deepest = 0  # whole prompts: not a sample at all
        for state, count in zip(states, counts, strict=True):
            state.is_behind = count == 0
            state.is_new = state.is_new and count == 0
        return counts

    def cut(self, asks: Sequence[Ask], drafts: Sequence[Draft]) -> None:
        """See Controller."""
        if not self._is_free or not any(draft.tokens for draft in drafts):
            return
        states = [self._state(ask) for ask in asks]
        grades = [draft.grades or [0] * len(draft.tokens) for draft in drafts]
        for draft, count in zip(drafts, self._decide(states, grades), strict=True):
            draft.cut(count)

    def observe(self, rounds: Sequence[Round], cost: StepCost) -> None:
        """See Controller."""
        if cost.is_decode:
            self._steps.record(cost.num_rows, cost.step_s)
            is_known = self._drafting.num_samples >= _WELL_KNOWN
            if self._deepest and (self._draft_is_typical or not is_known):
                self._drafting.record(self._deepest, cost.draft_s)
        for round_ in rounds:
            state = self._states.get(round_.request_id, {}).get(round_.sample_index)
            if state is not None:
                self._note(state, round_, cost)

    def forget(self, request_id: int) -> None:
        """See Controller."""
        self._states.pop(request_id, None)

    # ---- one decision -----------------------------------------------------------------------

    def _state(self, ask: Ask) -> _State:
        request_id, sample = ask.generation.sequence.order
        samples = self._states.setdefault(request_id, {})
        state = samples.get(sample)
        if state is None:
            state = samples[sample] = _State(
                self._rates.fork(_OWN_MEMORY), probe_at=self._probing.first
            )
        return state

    def _decide(self, states: list[_State], grades: list[list[int]]) -> list[int]:
        chances = [self._chances(s, g) for s, g in zip(states, grades, strict=True)]
        choice = choose(chances, self._num_running, self._step_seconds, self._draft_seconds)
        if not any(choice.counts) and self._is_unsure():
            choice = self._least(chances, choice)
        if any(choice.counts):
            self._num_rounds += 1
            if self._num_rounds % min(_EXPLORE_EVERY, 2 + self._num_rounds // 8) == 0:
                choice = self._explore(chances, choice)
        for index, state in enumerate(states):
            count = choice.counts[index]
            state.is_probe = False
            if count == 0 and grades[index]:
                count = choice.counts[index] = min(self._probe(state), len(grades[index]))
            elif count:
                state.idle, state.probe_at, state.probe_size = 0, self._probing.first, 1
            state.grades = grades[index][:count]
            tokens = 1 + sum(chances[index][:count])
            state.expected = (tokens * choice.plain_seconds, choice.seconds) if count else None
        return choice.counts

    def _chances(self, state: _State, grades: list[int]) -> list[float]:
        """That each draft is reached and accepted."""
        found = []
        chance = 1.0
        rates: dict[int, float] = {}
        for grade in grades:
            rate = rates.get(grade)
            if rate is None:
                rate = rates[grade] = state.rates.rate(grade)
            chance *= rate
            if chance < _MIN_CHANCE:
                break
            found.append(chance)
        return found

    def _probe(self, state: _State) -> int:
        state.idle += 1
        if state.idle < state.probe_at:
            return 0
        state.idle, state.is_probe = 0, True
        state.rates.fade()
        return state.probe_size

    def _explore(self, chances: list[list[float]], best: Choice) -> Choice:
        """Now and then another number of drafts: of those that cannot lose much, and none, the one
        whose time is known least."""
        running, chosen = self._num_running, sum(best.counts)
        found, least = best, _WELL_KNOWN
        for total in {0, chosen - 1, chosen + 1, round(chosen * 0.5), round(chosen * 1.5)}:
            confidence = self._steps.confidence(running + max(total, 0))
            if total == chosen or confidence >= least:
                continue
            other = choose(chances, running, self._step_seconds, self._draft_seconds, total)
            loss = best.tokens / best.seconds / (other.tokens / other.seconds)
            if loss < _EXPLORE_LOSS or total == 0:
                found, least = other, confidence
        return found

    def _is_unsure(self) -> bool:
        """Whether too little was measured to give speculation up: one hiccup could have done it."""
        samples = self._steps if self._is_free else self._drafting
        return samples.num_samples < _SURE

    def _least(self, chances: list[list[float]], none: Choice) -> Choice:
        """One draft instead of none, where it has a fair chance."""
        if max((row[0] for row in chances if row), default=0.0) < _FAIR:
            return none
        return choose(chances, self._num_running, self._step_seconds, self._draft_seconds, 1)

    def _step_seconds(self, num_rows: int) -> float:
        return self._steps.seconds(num_rows)

    def _draft_seconds(self, deepest: int) -> float:
        if self._is_free or deepest == 0:
            return 0.0
        if self._drafting.num_samples == 0:
            return _DRAFT_COST * deepest * self._steps.seconds(1)
        return self._drafting.seconds(deepest)

    # ---- what came of it --------------------------------------------------------------------

    def _note(self, state: _State, round_: Round, cost: StepCost) -> None:
        state.rates.note(state.grades, round_.num_tested, round_.num_accepted)
        if state.is_probe:
            if round_.num_accepted > 0:
                state.probe_at, state.probe_size = 1, _FOLLOW_UP
            else:
                later = max(state.probe_at, self._probing.first) * self._probing.growth
                state.probe_at, state.probe_size = min(later, self._probing.last), 1
        if cost.is_decode:
            plain = self._steps.seconds(cost.num_seqs)
            predicted = state.expected or (plain, plain)
            sums = state.sums
            sums[0] += predicted[0]
            sums[1] += predicted[1]
            sums[2] += round_.num_tokens * plain
            expected = self._steps.seconds(cost.num_rows)
            sums[3] += min(cost.step_s, _HICCUP * expected) + cost.draft_s
            _write_gains(round_.account, sums)


def _write_gains(account: SpeculationAccount, sums: list[float]) -> None:
    account.predicted_gain = sums[0] / sums[1]
    account.measured_gain = sums[2] / sums[3]
