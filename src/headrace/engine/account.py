"""The account of steps: what each one did, how long it took, and the least that it could take.

An engine that was given a StepAccount notes every step in it: totals, the share of every request
that took part (Request.bound_s, Request.step_s), and a StepRecord for whoever wants to see. The
limits come from outside (limits/step_limits.py): this file knows no machine and no costs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.engine.config import EngineConfig
from headrace.engine.generation import StepSums, generation_of
from headrace.engine.request import Sequence as EngineSequence
from headrace.engine.scheduler import Plan, Scheduler
from headrace.ops.batch import Batch
from headrace.ops.counts import visible_before, visible_pairs

log = logging.getLogger(__name__)


class StepLimit(Protocol):
    """What a step cannot do without: seconds, operations, bytes that must cross the memory bus."""

    bound_s: float
    operations: int
    read_bytes: int
    written_bytes: int


class Limits(Protocol):
    """Gives the limit of a step from its counts (limits.step_limits.StepLimits is one)."""

    windows: tuple[int | None, ...]

    def step(self, rows: tuple[int, ...], pairs: Sequence[int], before: Sequence[int]) -> StepLimit:
        """rows: tokens, logit rows, prompt rows, hidden rows. pairs, before: of attention, for each
        window."""
        ...


class Noted(Protocol):
    """What a StepAccount looks at: an engine."""

    config: EngineConfig
    scheduler: Scheduler


@dataclass(slots=True)  # not frozen: one is made per step
class StepRecord:
    """One step. started_s: monotonic clock; step_s: from scheduling to the last drawn token.

    num_decode_tokens: of sequences that computed one token and perhaps drafts, num_draft_tokens of
    them all; num_prefill_tokens: of the others, as scheduling tells them apart. num_logit_rows:
    rows that draw; num_prompt_rows: rows whose logits were wanted besides; num_hidden_rows: rows
    whose final hidden values were. pairs: (query, position) pairs that attention computed in one
    layer, by the window of the layer in Limits.windows. num_preempted: sequences that lost their
    blocks. num_running, num_waiting, num_paused, held_bytes: after the step; held_bytes: of KV
    blocks that a request holds. limit: None without limits, and for a step that failed.
    """

    started_s: float
    step_s: float
    num_seqs: int
    num_decode_tokens: int
    num_prefill_tokens: int
    num_logit_rows: int
    num_prompt_rows: int
    num_hidden_rows: int
    num_preempted: int
    num_running: int
    num_waiting: int
    num_paused: int
    held_bytes: int
    pairs: Sequence[int]
    limit: StepLimit | None
    failed: bool
    num_draft_tokens: int = 0


class StepAccount:
    """Notes steps; one per engine, on the engine's thread. All fields but the totals may be set
    between steps.

    limits: of this model on this machine, None where they are not known. on_step: called with every
    step's record, at its end; when it raises, that is logged and it is not called again. Totals
    over all steps with a limit: bound_s, step_s, operations, read_bytes, written_bytes.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.limits = limits
        self.on_step = on_step
        self.bound_s = 0.0
        self.step_s = 0.0
        self.operations = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self._sequences: list[EngineSequence] = []  # of the last step with a limit
        self._steps = StepSums()

    def note(
        self,
        engine: Noted,
        started_s: float,
        plan: Plan,
        batch: Batch,
        num_hidden_rows: int,
        *,
        failed: bool,
    ) -> None:
        """Notes a step that has just ended."""
        counts = plan.num_new_tokens
        rows = (
            batch.num_tokens,
            len(batch.logit_rows),
            len(batch.prompt_rows),
            num_hidden_rows,
        )
        pairs: list[int] = []
        limit = None
        if self.limits is not None:
            contexts: list[int] = batch.context_lens.tolist()
            pairs, before = attention_work(counts, contexts, self.limits.windows)
            if not failed:
                limit = self.limits.step(rows, pairs, before)
        step_s = time.monotonic() - started_s
        if limit is not None:
            self._share(limit, step_s, plan)
        if self.on_step is None:
            return
        scheduler, sizes = engine.scheduler, engine.config.pools.block_bytes
        num_decodes = counts.count(1) + plan.num_verify_tokens
        self._show(
            StepRecord(
                started_s,
                step_s,
                len(counts),
                num_decodes,
                rows[0] - num_decodes,
                rows[1],
                rows[2],
                rows[3],
                len(plan.preempted) + len(plan.reclaimed),
                len(scheduler.running),
                len(scheduler.waiting),
                len(scheduler.paused),
                sum(
                    (pool.num_blocks - pool.num_free - pool.num_reclaimable) * size
                    for pool, size in zip(scheduler.manager.pools, sizes, strict=True)
                ),
                pairs,
                limit,
                failed,
                plan.num_draft_tokens,
            )
        )

    def _share(self, limit: StepLimit, step_s: float, plan: Plan) -> None:
        """Adds a step to the totals and, whole, to every request that took part: nothing is done
        per request while the same ones go on."""
        bound_s = limit.bound_s
        self.bound_s += bound_s
        self.step_s += step_s
        self.operations += limit.operations
        self.read_bytes += limit.read_bytes
        self.written_bytes += limit.written_bytes
        if plan.sequences != self._sequences:  # somebody joined or left: a new sum for these
            self._sequences, self._steps = plan.sequences, StepSums()
            for request in {generation_of(sequence).request for sequence in plan.sequences}:
                request.take_part(self._steps)
        self._steps.bound_s += bound_s
        self._steps.step_s += step_s

    def _show(self, record: StepRecord) -> None:
        assert self.on_step is not None
        try:
            self.on_step(record)
        except Exception:
            log.exception("The observer of steps failed and is not called again.")
            self.on_step = None


def attention_work(
    counts: Sequence[int], contexts: Sequence[int], windows: Sequence[int | None]
) -> tuple[list[int], list[int]]:
    """(query, position) pairs, and older positions that are seen, of a step whose request i
    computes counts[i] tokens up to contexts[i] positions, for each window."""
    pairs, before = [], []
    plain = len(counts) == sum(counts)
    for window in windows:
        if not plain:
            parts = list(zip(counts, contexts, strict=True))
            pairs.append(sum(visible_pairs(n, c, window) for n, c in parts))
            before.append(sum(visible_before(n, c, window) for n, c in parts))
            continue
        # One query each: it sees itself and what is before.
        seen = sum(contexts if window is None else [min(c, window) for c in contexts])
        pairs.append(seen)
        before.append(seen - len(counts))
    return pairs, before
