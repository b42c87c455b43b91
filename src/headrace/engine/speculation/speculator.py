"""Speculator: all that the step loop sees of speculation.

    propose ─▶ (schedule: cuts drafts) ─▶ (run) ─▶ (draw: rounds) ─▶ close
    Sequence.drafts, a Trial each                   Trial.judge       accounts, controllers

Between steps no sequence has drafts: whoever pauses, aborts or preempts need not know of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.engine.generation import Generation, Request, generation_of
from headrace.engine.report import report
from headrace.engine.request import Sequence
from headrace.engine.scheduler import Plan
from headrace.engine.speculation import ngram
from headrace.engine.speculation.account import Round, SpeculationAccount
from headrace.engine.speculation.adaptive import AdaptiveController
from headrace.engine.speculation.choice import Acceptance, Choice, Speculative
from headrace.engine.speculation.controller import Controller, StepCost
from headrace.engine.speculation.drafter import NUM_GRADES, Ask, Draft, Drafter
from headrace.engine.speculation.rounds import Trial
from headrace.errors import UsageError

#: A draft model: most drafts of a round that pay, and α before anything is known.
_MAX_MODEL_DRAFTS = 8
_MODEL_PRIOR = 0.7


def adaptive(kind: Speculative) -> Controller:
    """As many drafts as pay."""
    if kind is Speculative.NGRAM:
        return AdaptiveController(ngram.priors(), ngram.MAX_DRAFTS, is_free=True)
    return AdaptiveController([_MODEL_PRIOR] * NUM_GRADES, _MAX_MODEL_DRAFTS, is_free=False)


def _fixed_number(ask: Ask) -> int | None:
    """Drafts of every round, where the request or the engine fixed it."""
    choice = ask.generation.request.speculation
    return None if choice is None else choice.num_draft_tokens


class Speculator:
    """One per engine, on its thread. drafters: who can be asked. num_ids: drafts outside the
    vocabulary 0 … num_ids − 1 are cut off. make_controller: one for each drafter.

    total: the account over all requests. num_requests: open ones that speculate; with none, the
    step loop calls nothing here. trials: of the step that runs.
    """

    def __init__(
        self,
        drafters: Mapping[Speculative, Drafter],
        num_ids: int,
        make_controller: Callable[[Speculative], Controller] = adaptive,
    ) -> None:
        self._drafters = dict(drafters)
        self._controllers = {kind: make_controller(kind) for kind in drafters}
        self._num_ids = num_ids
        self._drafted_s = 0.0  # when the drafts of the step were there
        self._draft_s = 0.0
        self._asked: tuple[Speculative, ...] = ()  # the drafters of the step
        self.total = SpeculationAccount()
        self.num_requests = 0
        self.trials: dict[Sequence, Trial] = {}

    def check(self, choice: Choice) -> None:
        """Raises UsageError for what this engine cannot do."""
        kind = choice.speculative
        if kind is Speculative.OFF:
            return
        if kind in self._drafters:
            return
        if not self._drafters:
            raise UsageError(
                f'speculative = "{kind.value}" needs a KV cache; kv_allocator is "none".'
            )
        raise UsageError(
            'speculative = "draft" needs a draft model, and this engine was started without one '
            "(draft_model)."
        )

    def open(self, request: Request, choice: Choice) -> None:
        """A new request; `check` found nothing against its choice."""
        if choice.speculative is not Speculative.OFF and request.params.max_tokens != 0:
            request.speculation = choice
            request.speculation_account = SpeculationAccount()
            self.num_requests += 1

    def forget(self, generation: Generation) -> None:
        """A sample has ended."""
        choice = generation.request.speculation
        if choice is not None:
            self._drafters[choice.speculative].forget(generation)

    def close(self, request: Request) -> None:
        """All samples of a request have ended."""
        if request.speculation is not None:
            self._controllers[request.speculation.speculative].forget(request.request_id)
            self.num_requests -= 1

    # ---- one step ---------------------------------------------------------------------------

    def propose(self, running: list[Sequence]) -> int:
        """Gives drafts to the sequences that want a single token; how many in all."""
        try:
            return self._propose(running)
        except BaseException:  # Ctrl-C: the step will not be
            self.close_step(None)
            raise

    def _propose(self, running: list[Sequence]) -> int:
        started_s = time.monotonic()
        asks: dict[Speculative, list[Ask]] = {}
        for sequence in running:
            limit = sequence.max_num_tokens - len(sequence.tokens) - 1
            generation = generation_of(sequence)
            choice = generation.request.speculation
            if choice is None or limit < 1 or sequence.num_wanted != 1 or not generation.token_ids:
                continue
            if choice.num_draft_tokens is not None:
                limit = min(limit, choice.num_draft_tokens)
            rejects = choice.acceptance is Acceptance.REJECTION
            asks.setdefault(choice.speculative, []).append(Ask(generation, limit, rejects))
        num_drafts = 0
        for kind, asked in asks.items():
            for ask, draft in self._drafts(kind, asked, len(running)):
                generation = ask.generation
                if draft.tokens:
                    self.trials[generation.sequence] = Trial(generation, draft)
                    generation.sequence.drafts = list(draft.tokens)
                    num_drafts += len(draft.tokens)
                else:
                    account = generation.request.speculation_account
                    assert account is not None
                    account.num_plain_rounds += 1
                    self.total.num_plain_rounds += 1
        self._asked = tuple(asks)
        self._drafted_s = time.monotonic()
        self._draft_s = self._drafted_s - started_s
        return num_drafts

    def _drafts(
        self, kind: Speculative, asks: list[Ask], num_running: int
    ) -> list[tuple[Ask, Draft]]:
        """Sound drafts for all; empty ones where nothing pays, or the drafter fails."""
        controller = self._controllers[kind]
        free = [ask for ask in asks if _fixed_number(ask) is None]
        chosen = iter(controller.num_drafts(free, num_running) if free else ())
        given = []
        wanted: list[Ask] = []
        for ask in asks:
            limit = ask.limit if _fixed_number(ask) is not None else next(chosen)
            if limit == ask.limit:
                wanted.append(ask)
            elif limit:
                least = controller.least_chance
                wanted.append(Ask(ask.generation, limit, ask.wants_distributions, least))
            else:
                given.append((ask, Draft([])))
        if not wanted:
            return given
        try:
            drafts = self._drafters[kind].propose(wanted)
            for ask, draft in zip(wanted, drafts, strict=True):
                draft.cut(min(ask.limit, self._num_sound(draft)))
        except Exception:
            report("drafting failed; the step goes on without drafts")
            return [*given, *((ask, Draft([])) for ask in wanted)]
        if free:
            variable = [i for i, ask in enumerate(wanted) if _fixed_number(ask) is None]
            controller.cut([wanted[i] for i in variable], [drafts[i] for i in variable])
        return [*given, *zip(wanted, drafts, strict=True)]

    def _num_sound(self, draft: Draft) -> int:
        """Tokens before the first id that is none, or that came from nowhere. One that was drawn
        has to be an id of the target: to cut it for what it is would bias the rejection rule."""
        given = draft.distributions
        end = len(draft.tokens) if given is None else min(len(draft.tokens), len(given))
        for index, token in enumerate(draft.tokens[:end]):
            if not 0 <= token < self._num_ids:
                assert given is None, f"a draft was drawn outside the vocabulary: {token}"
                return index
        return end

    @property
    def has_asked(self) -> bool:
        """Whether the step that runs has to be closed: somebody could have had drafts."""
        return bool(self._asked)

    def close_step(self, plan: Plan | None) -> None:
        """The step has ended: accounts for it. None: it failed, and nothing is known of it."""
        if plan is not None:
            step_s = time.monotonic() - self._drafted_s
            self._observe(plan, step_s)
        for sequence in self.trials:
            sequence.drafts = []
        self.trials.clear()
        self._asked = ()

    def _observe(self, plan: Plan, step_s: float) -> None:
        rounds: dict[Speculative, list[Round]] = {kind: [] for kind in self._asked}
        for sequence, trial in self.trials.items():
            request = trial.generation.request
            account, choice = request.speculation_account, request.speculation
            assert account is not None
            assert choice is not None
            if trial.row < 0:  # preempted, or it failed before it could draw
                continue
            num_drafted = len(sequence.drafts)
            for sums in (account, self.total):
                if num_drafted:
                    sums.add(num_drafted, trial.num_tested, trial.num_accepted)
                else:
                    sums.num_plain_rounds += 1
            num_cut = len(trial.draft.tokens) - num_drafted
            account.num_cut += num_cut
            self.total.num_cut += num_cut
            rounds[choice.speculative].append(
                Round(
                    request.request_id,
                    trial.generation.index,
                    account,
                    num_drafted,
                    trial.num_tested,
                    trial.num_accepted,
                    trial.num_tokens,
                )
            )
            if trial.generation.finish_reason is None:
                drafter = self._drafters[choice.speculative]
                drafter.kept(trial.generation, trial.num_accepted)
        num_rows, num_seqs = plan.num_tokens, len(plan.sequences)
        cost = StepCost(
            num_rows,
            num_seqs,
            plan.num_draft_tokens,
            num_rows == num_seqs + plan.num_draft_tokens,
            step_s,
            self._draft_s,
        )
        for kind in self._asked:
            self._controllers[kind].observe(rounds[kind], cost)
