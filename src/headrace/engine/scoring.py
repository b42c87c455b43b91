"""Prompt logprobs: the model's own logprob of every prompt token, a few rows at a time.

The logits at position i score the prompt token at i + 1, so rows 0 … P−2 are wanted and entry 0 of
the result stays None. Rows come with whatever chunk computes them; after a preemption, rows that
were already scored are not scored again.
"""

from __future__ import annotations

from headrace.engine.drawing import Logits, Sampler
from headrace.engine.generation import Request, entry_of
from headrace.engine.request import Sequence
from headrace.engine.scheduler import Plan
from headrace.ops.batch import Batch
from headrace.ops.executor import Executor

ROWS_PER_CALL = 8


class PromptScorer:
    """Asks for the rows of a step and stores their logprobs in the requests."""

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self._executor = executor
        self._sampler = sampler

    def rows(self, plan: Plan) -> list[int]:
        """Rows of the step, ascending, whose logits are wanted for prompt logprobs."""
        rows: list[int] = []
        first = 0
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            start = sequence.num_computed_tokens
            begin, end = _wanted(sequence, start, count)
            rows += range(first + begin - start, first + end - start)
            first += count
        return rows

    def score(self, plan: Plan, batch: Batch) -> None:
        """Scores the rows of the step just run. Call before the step is committed."""
        if not len(batch.prompt_rows):
            return
        wanted = [
            (_request(sequence), position)
            for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True)
            for position in range(*_wanted(sequence, sequence.num_computed_tokens, count))
        ]
        done = 0
        for logits in self._executor.prompt_logits(batch, ROWS_PER_CALL):
            part = wanted[done : done + len(logits)]
            done += len(logits)
            self._score_rows(logits, part)
        assert done == len(wanted), "prompt rows are missing"

    def _score_rows(self, logits: Logits, part: list[tuple[Request, int]]) -> None:
        num_top = max(request.params.prompt_logprobs or 0 for request, _ in part)
        tokens = [request.prompt_token_ids[position + 1] for request, position in part]
        scores = self._sampler.score(logits, tokens, num_top)
        for (request, _), token, drawn in zip(part, tokens, scores, strict=True):
            assert request.prompt_logprobs is not None
            num_own = request.params.prompt_logprobs or 0
            entry = entry_of(token, drawn, num_own, request.token_text)
            request.prompt_logprobs.append(entry)


def _request(sequence: Sequence) -> Request:
    assert sequence.generation is not None
    return sequence.generation.request


def _wanted(sequence: Sequence, start: int, count: int) -> tuple[int, int]:
    """Positions of this chunk whose logits score a prompt token not yet scored: [begin, end)."""
    request = _request(sequence)
    if request.prompt_logprobs is None:
        return start, start
    scored = len(request.prompt_logprobs) - 1  # positions 0 … scored−1 are done
    begin = max(start, scored)
    end = min(start + count, sequence.num_prompt_tokens - 1)
    return begin, max(begin, end)
