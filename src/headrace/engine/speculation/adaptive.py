"""AdaptiveController: as many drafts as pay, and none where none do.

A round with γ drafts is expected to gain 1 + α + α² + … + α^γ tokens and to cost γ·c + v(γ+1), in
units of a plain step; gamma.py takes the counts with the largest ratio. α is estimated per request,
with a value of its own for each grade of drafts (acceptance.py); c and v are measured step by step,
by all requests of the engine together (costs.py).

Where nothing pays, a request is tried again after some rounds, and ever more rarely: a text may
change, but a lost probe costs a row, and a draft model must read all that it missed. Now and then a
number of rows whose time is not well known is tried instead of the best.

Counts and times in, counts out: no token, no logit, no randomness; the choice is made before the
round's samples are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.engine.speculation.acceptance import AcceptanceRates
from headrace.engine.speculation.account import Round
from headrace.engine.speculation.controller import StepCost
from headrace.engine.speculation.costs import CostCurve
from headrace.engine.speculation.drafter import NUM_GRADES, Ask, Draft
from headrace.engine.speculation.gains import Gains
from headrace.engine.speculation.gamma import DraftPlan, StepTimes, best_plan, plan_of

_ROW_COST = 0.1  # of a row's arithmetic, in plain steps, before anything is measured
_DRAFT_COST = 0.4  # of a draft, likewise
_MIN_CHANCE = 0.02  # of a draft to be reached and accepted
_OWN_MEMORY, _ALL_MEMORY = 64, 1024  # tests that α of a request, of the engine, goes back
_EXPLORE_EVERY = 16  # rounds with drafts; at first more often
_EXPLORE_LOSS = 1.15  # the best ratio over its own, at most
_KNOWN, _WELL_KNOWN = 1.5, 3  # fresh samples of a number of rows
_COMMON, _NOTE_EVERY = 6, 8  # with so many fresh samples, every eighth step is noted
_SURE = 8  # samples, below which nothing is given up that has a fair chance
_FAIR = 0.5
_LOWEST, _HIGHEST = 0.2, 0.9  # chance below which a draft model is told to stop
_FOLLOW_UP = 2  # drafts of the probe right after one that was accepted


def _step_prior(num_rows: float) -> float:
    """Reading the weights (1) and computing the rows overlap: free rows, a knee, a slope."""
    return float((1 + (_ROW_COST * num_rows) ** 3) ** (1 / 3))


@dataclass(frozen=True, slots=True)
class _Probing:
    """Rounds without drafts before a probe: the first time, how many times as many after each that
    was lost, and the most."""

    first: int
    growth: int
    last: int


_PROBING_FREE = _Probing(16, 2, 256)
_PROBING_MODEL = _Probing(64, 4, 1024)


@dataclass(slots=True)
class _State:
    """What is known of one sample. idle: rounds since its last draft; probe_at: of them, when it
    gets probe_size all the same; gave_up: only a probe can win it back. is_new, is_behind: a draft
    model has read nothing of it, or not what came last; is_idle: it got no draft in this round.
    grades: of the drafts under way; expected: its tokens in this round, and the step's seconds,
    where they were chosen here."""

    rates: AcceptanceRates
    probe_at: int
    probe_size: int = 1
    idle: int = 0
    is_probe: bool = False
    gave_up: bool = False
    is_new: bool = True
    is_idle: bool = False
    is_behind: bool = False
    grades: Sequence[int] = ()
    expected: tuple[float, float] | None = None


class AdaptiveController:
    """One per drafter of an engine. priors: α of each grade, before anything is known. max_drafts:
    of a round. is_free: drafting costs next to nothing, so γ is chosen when the drafts and their
    grades are there; otherwise before they are made."""

    def __init__(self, priors: Sequence[float], max_drafts: int, *, is_free: bool) -> None:
        assert len(priors) == NUM_GRADES
        self._max_drafts = max_drafts
        self._is_free = is_free
        self._probing = _PROBING_FREE if is_free else _PROBING_MODEL
        self._steps = CostCurve(_step_prior)
        self._drafting = CostCurve(lambda size: size)  # of one draft: a round is γ times as long
        self._times = StepTimes(self._steps.seconds, self._draft_seconds)
        self._rates = AcceptanceRates(priors, _ALL_MEMORY)
        self._states: dict[int, dict[int, _State]] = {}  # request → sample
        self._gains: dict[int, Gains] = {}  # request
        self._num_rounds = 0  # with drafts
        self._num_steps = 0
        self._num_running = 1
        self.least_chance = 0.0

    # ---- Controller -------------------------------------------------------------------------

    def num_drafts(self, asks: Sequence[Ask], num_running: int) -> list[int]:
        """See Controller."""
        self._num_running = num_running
        limits = [min(ask.limit, self._max_drafts) for ask in asks]
        if self._is_free:
            return limits
        return self._decide(asks, [[0] * limit for limit in limits])

    def cut(self, asks: Sequence[Ask], drafts: Sequence[Draft]) -> None:
        """See Controller."""
        if not self._is_free or not any(draft.tokens for draft in drafts):
            return
        grades = [draft.grades or [0] * len(draft.tokens) for draft in drafts]
        for draft, count in zip(drafts, self._decide(asks, grades), strict=True):
            draft.cut(count)

    def observe(self, rounds: Sequence[Round], cost: StepCost) -> None:
        """See Controller."""
        if cost.is_decode and self._is_news(cost.num_rows):
            self._steps.record(cost.num_rows, cost.step_s)
        if not rounds:
            return
        states = [self._state(round_.request_id, round_.sample_index) for round_ in rounds]
        if not self._is_free:
            self._note_drafting(states, rounds, cost.draft_s)
        for state, round_ in zip(states, rounds, strict=True):
            self._note(state, round_, cost)

    def forget(self, request_id: int) -> None:
        """See Controller."""
        self._states.pop(request_id, None)
        gains = self._gains.pop(request_id, None)
        if gains is not None:
            gains.note_plain(self._steps.seconds(1))

    # ---- one decision -----------------------------------------------------------------------

    def _state(self, request_id: int, sample: int) -> _State:
        samples = self._states.setdefault(request_id, {})
        state = samples.get(sample)
        if state is None:
            state = samples[sample] = _State(self._rates.fork(_OWN_MEMORY), self._probing.first)
        return state

    def _decide(self, asks: Sequence[Ask], grades: list[list[int]]) -> list[int]:
        states = [self._state(*ask.generation.sequence.order) for ask in asks]
        chances = [_chances(s.rates, g) for s, g in zip(states, grades, strict=True)]
        plan = best_plan(chances, self._num_running, self._times)
        if not any(plan.counts) and self._is_hopeful(states, grades):
            plan = plan_of(1, chances, self._num_running, self._times)
        if any(plan.counts):
            self._num_rounds += 1
            if self._num_rounds % min(_EXPLORE_EVERY, 2 + self._num_rounds // 8) == 0:
                plan = self._explore(chances, plan)
        for index, (state, graded) in enumerate(zip(states, grades, strict=True)):
            count = plan.counts[index]
            state.is_probe, state.is_behind = False, state.is_idle
            if count:
                state.idle, state.probe_at, state.probe_size = 0, self._probing.first, 1
                state.gave_up = False
            elif graded:
                state.gave_up = True
                count = plan.counts[index] = min(self._probe(state), len(graded))
            state.is_idle = count == 0
            state.grades = graded[:count]
            if self._steps.num_samples:
                state.expected = (1 + sum(chances[index][:count]), plan.seconds)
        self.least_chance = self._least_chance(plan)
        return plan.counts

    def _least_chance(self, plan: DraftPlan) -> float:
        """Of a further draft, to be worth its time: what it costs, in tokens at the plan's rate."""
        if self._is_free or not any(plan.counts):
            return 0.0
        rows = self._num_running + sum(plan.counts)
        drafting = sum(count > 0 for count in plan.counts)
        more_s = self._times.step(rows + 1) - self._times.step(rows)
        more_s += self._times.drafting(1) / drafting
        return max(_LOWEST, min(more_s * plan.tokens / plan.seconds, _HIGHEST))

    def _probe(self, state: _State) -> int:
        state.idle += 1
        if state.idle < state.probe_at:
            return 0
        state.idle, state.is_probe = 0, True
        state.rates.fade()
        return state.probe_size

    def _is_hopeful(self, states: list[_State], grades: list[list[int]]) -> bool:
        """Whether a draft might pay after all: if α is somewhat better than it looks, or if there
        is a fair chance and too little was measured (one hiccup could have done it)."""
        asked = [(s, g[0]) for s, g in zip(states, grades, strict=True) if g and not s.gave_up]
        chance = max((state.rates.hopeful_rate(grade) for state, grade in asked), default=0.0)
        samples = self._steps if self._is_free else self._drafting
        if samples.num_samples < _SURE and chance >= _FAIR:
            return True
        return any(best_plan([[chance]], self._num_running, self._times).counts)

    def _explore(self, chances: list[list[float]], best: DraftPlan) -> DraftPlan:
        """None, if the time of a plain step is not known; else, of the numbers of drafts that
        cannot lose much, the one whose time is known least."""
        running, chosen = self._num_running, sum(best.counts)
        found, least = best, float(_WELL_KNOWN)
        if self._steps.confidence(running) < _KNOWN:
            return plan_of(0, chances, running, self._times)
        for total in {chosen - 1, chosen + 1, round(chosen * 0.5), round(chosen * 1.5)}:
            confidence = self._steps.confidence(running + total)
            if total in {0, chosen} or confidence >= least:
                continue
            other = plan_of(total, chances, running, self._times)
            loss = best.tokens / best.seconds / (other.tokens / other.seconds)
            if loss < _EXPLORE_LOSS:
                found, least = other, confidence
        return found

    def _draft_seconds(self, deepest: int) -> float:
        if self._is_free or deepest == 0:
            return 0.0
        if self._drafting.num_samples == 0:
            return _DRAFT_COST * deepest * self._steps.seconds(1)
        return deepest * self._drafting.seconds(1)

    # ---- what came of it --------------------------------------------------------------------

    def _is_news(self, num_rows: int) -> bool:
        """Whether a step's time is worth noting: of sizes that come all the time, only some are."""
        self._num_steps += 1
        return self._num_steps % _NOTE_EVERY == 0 or self._steps.confidence(num_rows) < _COMMON

    def _gains_of(self, round_: Round) -> Gains:
        found = self._gains.get(round_.request_id)
        if found is None:
            found = self._gains[round_.request_id] = Gains(round_.account)
        return found

    def _note_drafting(self, states: list[_State], rounds: Sequence[Round], draft_s: float) -> None:
        """Notes what drafting took, if that was drafting and not reading what had been missed."""
        drafted = [s for s, round_ in zip(states, rounds, strict=True) if round_.num_drafted]
        is_known = self._drafting.num_samples >= _WELL_KNOWN
        if drafted and not any(s.is_new or (s.is_behind and is_known) for s in drafted):
            self._drafting.record(1, draft_s / max(round_.num_drafted for round_ in rounds))
        for state in drafted:
            state.is_new = False

    def _note(self, state: _State, round_: Round, cost: StepCost) -> None:
        grades: Sequence[int] = state.grades
        if not self._is_free and len(grades) < round_.num_tested:  # a number that was not ours
            grades = [0] * round_.num_tested
        if len(grades) >= round_.num_tested:
            state.rates.note(grades, round_.num_tested, round_.num_accepted)
        if state.is_probe:
            state.is_probe = False
            if round_.num_accepted > 0:
                state.probe_at, state.probe_size = 1, _FOLLOW_UP
            else:
                later = max(state.probe_at, self._probing.first) * self._probing.growth
                state.probe_at, state.probe_size = min(later, self._probing.last), 1
        if cost.is_decode:
            gains = self._gains_of(round_)
            # A draft model that stopped where it was unsure did not draft what was chosen here.
            as_chosen = self._is_free or round_.num_drafted == len(state.grades)
            gains.note(round_, cost, self._times, state.expected if as_chosen else None)
        state.expected = None


def _chances(rates: AcceptanceRates, grades: list[int]) -> list[float]:
    """That each draft is reached and accepted, as far as that is worth a thought."""
    found: list[float] = []
    known: dict[int, float] = {}
    chance = 1.0
    for grade in grades:
        rate = known.get(grade)
        if rate is None:
            rate = known[grade] = rates.rate(grade)
        chance *= rate
        if chance < _MIN_CHANCE:
            break
        found.append(chance)
    return found
