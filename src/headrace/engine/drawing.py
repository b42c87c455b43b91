"""Drawing: from the logits of a step to tokens in the outputs.

    logits [n, V] ─ sampler ─▶ token per row ─ Generation.accept ─▶ text, stops, Delta

Knows requests and their samples; the scheduler only where a request with several samples forks.
Where a step computed drafts, it draws in rounds (speculation/rounds.py).
"""

from __future__ import annotations

import time

from headrace.engine import sampler
from headrace.engine.admission import Vocabulary
from headrace.engine.generation import Generation, constraint_error, generation_of
from headrace.engine.outputs import Delta
from headrace.engine.report import report
from headrace.engine.request import FinishReason, Sequence, Status
from headrace.engine.sampler import TokenMask
from headrace.engine.scheduler import Scheduler
from headrace.engine.scoring import Logits, Observer
from headrace.engine.speculation.rounds import first_rows, pick, tested_drafts
from headrace.engine.speculation.speculator import Speculator
from headrace.ops.executor import Executor

#: Of the rows of a step; None where no row has a mask.
Masks = list[TokenMask | None] | None


class Drawing:
    """One per engine. executor: lends its workers. speculator: knows the trials of the step.
    observer: sees every row drawn from."""

    def __init__(
        self,
        executor: Executor,
        vocabulary: Vocabulary,
        scheduler: Scheduler,
        speculator: Speculator,
        observer: Observer | None,
    ) -> None:
        self._executor = executor
        self._vocabulary = vocabulary
        self._scheduler = scheduler
        self._speculator = speculator
        self._observer = observer

    def draw(self, drawing: list[Sequence], logits: Logits) -> tuple[list[Generation], list[Delta]]:
        """Draws the next token of every sequence, and more where drafts are right; the samples of a
        request all draw their first token from the same row, then fork. The generations that drew
        (some may have ended; the caller takes them out), and their deltas."""
        trials = self._speculator.trials
        rows: list[int] = []
        generations: list[Generation] = []
        forking: list[Sequence] = []
        for row, sequence in zip(first_rows(drawing, len(logits)), drawing, strict=True):
            if sequence.status is not Status.RUNNING:
                continue  # it failed in this step
            if self._observer is not None:
                self._observer.drawn_from(sequence, logits[row])
            generation = generation_of(sequence)
            if trials and sequence in trials:
                trials[sequence].row = row
            if sequence.num_slots == 1:
                generations.append(generation)
                rows.append(row)
            else:
                self.add_siblings(generation)
                generations += generation.request.generations
                rows += [row] * sequence.num_slots
                forking.append(sequence)
        plain = len(rows) == len(logits) and not forking
        deltas = self._accept_all(generations, logits if plain else pick(logits, rows))
        if trials:
            self._draw_rounds(generations, deltas, logits)
        for sequence in forking:
            if sequence.status is Status.RUNNING:
                self._fork(sequence)
        return generations, deltas

    def _draw_rounds(
        self, generations: list[Generation], deltas: list[Delta], logits: Logits
    ) -> None:
        """Every round after the first; adds to the first one's deltas."""
        trials = self._speculator.trials
        while True:
            passed = []
            for generation, delta in zip(generations, deltas, strict=True):
                trial = trials.get(generation.sequence)
                if trial is not None and trial.judge(delta):
                    passed.append(trial)
            if not passed:
                return
            rows = [trial.next_row for trial in passed]
            generations = [trial.generation for trial in passed]
            if self._observer is not None:
                for row, generation in zip(rows, generations, strict=True):
                    self._observer.drawn_from(generation.sequence, logits[row])
            deltas = self._accept_all(generations, pick(logits, rows))

    def _draw_positions(self, generations: list[Generation]) -> list[int]:
        """Absolute positions of the tokens to draw: with the seed, what the noise depends on."""
        return [len(g.sequence.tokens) for g in generations]

    def _draw_tokens(
        self, generations: list[Generation], logits: Logits, masks: Masks
    ) -> list[sampler.Drawn]:
        trials = self._speculator.trials
        return sampler.draw(
            logits,
            [g.sampler_state for g in generations],
            self._draw_positions(generations),
            self._vocabulary.num_ids,
            self._executor.pool,
            masks,
            tested_drafts(trials, generations) if trials else None,
        )

    def _masks(self, generations: list[Generation]) -> tuple[Masks, dict[int, str]]:
        """The mask of every row, None when no row has one; and row → what went wrong there."""
        constrained = [i for i, g in enumerate(generations) if g.constraint is not None]
        troubles: dict[int, str] = {}
        if not constrained:
            return None, troubles
        masks: list[TokenMask | None] = [None] * len(generations)
        for row in constrained:
            constraint = generations[row].constraint
            assert constraint is not None
            try:
                masks[row] = constraint.mask()
            except Exception as error:
                troubles[row] = constraint_error(error)
        return masks, troubles

    def _accept_all(self, generations: list[Generation], logits: Logits) -> list[Delta]:
        if not generations:
            return []
        masks, troubles = self._masks(generations)
        try:
            draws = self._draw_tokens(generations, logits, masks)
        except Exception as error:
            report("sampling failed; the requests of the step end with an error")
            return [g.end(FinishReason.ERROR, f"Sampling failed: {error!r}") for g in generations]
        now = time.monotonic()
        deltas = []
        for row, (generation, drawn) in enumerate(zip(generations, draws, strict=True)):
            if row in troubles:
                deltas.append(generation.end(FinishReason.ERROR, troubles[row]))
                continue
            request = generation.request
            if request.first_token_s is None:
                request.first_token_s = now
            try:
                delta = generation.accept(drawn)
            except Exception as error:  # a detokenizer's trouble with one text stays with it
                report("a text could not be extended; its request ends with an error")
                what = f"The text could not be extended: {error}"
                delta = generation.end(FinishReason.ERROR, what)
            deltas.append(delta)
        return deltas

    def add_siblings(self, first: Generation) -> None:
        """Samples 1 … n−1 of a request, still without blocks and outside the scheduler."""
        request = first.request
        parent = first.sequence
        for index in range(1, request.params.n):
            sequence = Sequence(
                (request.request_id, index),
                list(parent.tokens),
                parent.max_num_tokens,
                num_prompt_tokens=parent.num_prompt_tokens,
                rank=parent.place[0],
                salt=parent.salt,
                anew_because=parent.anew_because,
            )
            state = first.sampler_state.fork(index)
            stream = self._vocabulary.stream(request.params)
            constraint = request.constraints[index] if request.constraints else None
            request.generations.append(
                Generation(request, index, sequence, state, stream, constraint)
            )

    def _fork(self, parent: Sequence) -> None:
        """Lets the siblings that still run share the parent's blocks (or queues them, when the
        contiguous allocator has no room; they then compute the prompt themselves)."""
        assert parent.blocks is not None
        parent.num_slots = 1
        for generation in generation_of(parent).request.generations[1:]:
            sequence = generation.sequence
            if generation.finish_reason is not None:
                continue
            computed = parent.num_computed_tokens
            longest = sequence.max_num_positions
            if self._scheduler.budget.whole_history:
                sequence.blocks = self._scheduler.manager.open(longest)
            else:
                sequence.blocks = self._scheduler.manager.fork(parent.blocks, computed, longest)
            if sequence.blocks is None:
                self._scheduler.add(sequence)
                continue
            sequence.num_computed_tokens = sequence.num_stored_tokens = computed
            self._scheduler.add_running(sequence)
