"""Prompt logprobs: the model's own logprob of every prompt token, a few rows at a time.

The logits at position i score the prompt token at i + 1, so rows 0 … P−2 are wanted and entry 0 of
the result stays None. Rows come with whatever chunk computes them; after a preemption, rows that
were already scored are not scored again.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.engine import sampler
from headrace.engine.generation import Request, entry_of, generation_of
from headrace.engine.request import Sequence
from headrace.engine.scheduler import Plan
from headrace.ops.batch import Batch
from headrace.ops.executor import Executor

Logits = npt.NDArray[np.float32]

ROWS_PER_CALL = 8


class RowScorer(Protocol):
    """Which rows of a step need logits besides those that draw, and what becomes of them."""

    def rows(self, plan: Plan) -> list[int]:
        """Rows of the step, ascending; asked before the step."""
        ...

    def score(self, plan: Plan, batch: Batch) -> list[Sequence]:
        """Called after the step, before it is committed; the sequences whose rows failed."""
        ...


class Observer(RowScorer, Protocol):
    """Takes the place of prompt logprobs and sees every row that a token is drawn from; changes
    nothing (`verify` compares bits through it)."""

    def drawn_from(self, sequence: Sequence, logits: Logits) -> None:
        """logits: float32 [V] of the sequence's newest token, valid during the call."""
        ...


class PromptScorer:
    """Asks for the rows of a step and stores their logprobs in the requests.

    num_ids: ids at and above it (a padded vocabulary) have no part in any probability.
    """

    def __init__(self, executor: Executor, num_ids: int) -> None:
        self._executor = executor
        self._num_ids = num_ids

    def rows(self, plan: Plan) -> list[int]:
        """Rows of the step, ascending, whose logits are wanted for prompt logprobs."""
        rows: list[int] = []
        first = 0
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            start = sequence.num_computed_tokens
            begin, end = _wanted(sequence, count)
            rows += range(first + begin - start, first + end - start)
            first += count
        return rows

    def score(self, plan: Plan, batch: Batch) -> list[Sequence]:
        """Scores the rows of the step just run, before it is committed. Returns the sequences of
        which a row is not finite: their logprobs stay incomplete."""
        if not len(batch.prompt_rows):
            return []
        wanted = [
            (sequence, position)
            for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True)
            for position in range(*_wanted(sequence, count))
        ]
        failed: list[Sequence] = []
        done = 0
        for logits in self._executor.prompt_logits(batch, ROWS_PER_CALL):
            part = wanted[done : done + len(logits)]
            done += len(logits)
            failed += self._score_rows(logits, part)
        assert done == len(wanted), "prompt rows are missing"
        return failed

    def _score_rows(self, logits: Logits, part: list[tuple[Sequence, int]]) -> list[Sequence]:
        requests = [_request(sequence) for sequence, _ in part]
        tokens = [sequence.tokens[position + 1] for sequence, position in part]
        num_top = max(request.params.prompt_logprobs or 0 for request in requests)
        failed = []
        scores = sampler.token_logprobs(logits, tokens, num_top, self._num_ids, self._executor.pool)
        for (sequence, _), request, token, score in zip(
            part, requests, tokens, scores, strict=True
        ):
            assert request.prompt_logprobs is not None
            if score is None:
                failed.append(sequence)
                continue
            num_own = request.params.prompt_logprobs or 0
            request.prompt_logprobs.append(entry_of(token, score, num_own, request.token_text))
        return failed


def _request(sequence: Sequence) -> Request:
    return generation_of(sequence).request


def _wanted(sequence: Sequence, count: int) -> tuple[int, int]:
    """Positions of the next `count` whose logits score a prompt token not yet scored:
    [begin, end)."""
    start = sequence.num_computed_tokens
    request = _request(sequence)
    if request.prompt_logprobs is None:
        return start, start
    scored = len(request.prompt_logprobs) - 1  # positions 0 … scored−1 are done
    begin = max(start, scored)
    end = min(start + count, sequence.num_prompt_tokens - 1)
    return begin, max(begin, end)
