"""Sequence: one sample of one request, as scheduling sees it.

A sequence has no phase. It wants `num_tokens` positions computed and has `num_computed_tokens`;
prefill, a chunk, decode, resume after preemption and a cache hit are all "the next n tokens":

    tokens      |<--------- prompt --------->|<---- output ---->|
    positions   0 … num_computed−1 are in KV memory; num_computed … num_tokens−1 are still wanted

This file knows no block ids, tensors, text or clock.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.engine.blocks import SequenceBlocks


class Status(Enum):
    """Where a sequence is. NEW, WAITING ⇄ RUNNING (preemption goes back), from either to PAUSED and
    back to WAITING, FINISHED for good."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a sequence ended. Every sequence ends with exactly one."""

    STOP = "stop"  # an end-of-text id, a stop id or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORT = "abort"  # the caller gave up
    ERROR = "error"  # this request failed; `error` says how


class Sequence:
    """Token ids and progress of one sample. Mutated by the scheduler (status, blocks) and by the
    step's commit (tokens, counts); nobody else.

    order: (arrival of the request, sample index), its name in messages and checks.
    place: (rank, *order); smaller = served first. Without priorities the rank is the arrival, and
        "older" means "earlier in this order" everywhere.
    tokens: prompt and output ids so far. max_num_tokens: prompt + most output ids it may reach.
    num_computed_tokens: positions whose keys and values are in this sequence's blocks.
    num_stored_tokens: ≥ num_computed_tokens; positions below it must not be written again. It is
        larger only after a hit on the whole prompt: the last token is computed for its logits
        while its entry stays where it is, in a shared block.
    num_cached_tokens: prompt positions that others had computed before it.
    num_slots: running places it counts for (its not yet forked siblings included).
    draws: whether a token is ever drawn; else it ends when its prompt is computed.
    drafts: guesses of the tokens behind the newest one, which the step computes along with it;
        cut by the scheduler where there is no room, empty between steps.
    salt: of the part of the prefix tree that it may reuse and adds to; None: it takes no part.
    anew_because: why it must not start behind a cached prefix; None: it may. branch: where it left
        a path that others had taken before the cache could be used that far (prefix/reuse.py); 0 =
        nowhere.
    num_overtaken: newer sequences that were admitted before it.
    owner: what its tokens are drawn for (generation.py); scheduling only carries it.
    """

    __slots__ = (
        "anew_because",
        "blocks",
        "branch",
        "cache_note",
        "drafts",
        "draws",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_overtaken",
        "num_preemptions",
        "num_prompt_tokens",
        "num_slots",
        "num_stored_tokens",
        "order",
        "owner",
        "place",
        "salt",
        "status",
        "tokens",
    )

    def __init__(
        self,
        order: tuple[int, int],
        tokens: list[int],
        max_num_tokens: int,
        *,
        num_prompt_tokens: int | None = None,
        num_slots: int = 1,
        rank: int | None = None,
        salt: str | None = None,
        anew_because: str | None = None,
    ) -> None:
        self.order = order
        self.place = (order[0] if rank is None else rank, *order)
        self.tokens = tokens
        self.num_prompt_tokens = len(tokens) if num_prompt_tokens is None else num_prompt_tokens
        self.max_num_tokens = max_num_tokens
        self.draws = max_num_tokens > self.num_prompt_tokens
        self.drafts: list[int] = []
        self.num_computed_tokens = 0
        self.num_stored_tokens = 0
        self.num_slots = num_slots
        self.salt = salt
        self.anew_because = anew_because
        self.branch = 0
        self.num_overtaken = 0
        self.status = Status.NEW
        self.blocks: SequenceBlocks | None = None
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.cache_note: str | None = None
        self.owner: object | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_wanted(self) -> int:
        """Tokens still to compute before the next one can be drawn."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def max_num_positions(self) -> int:
        """Most positions it may ever hold in KV memory: the last token drawn is never computed."""
        return max(self.max_num_tokens - 1, self.num_prompt_tokens)

    def __repr__(self) -> str:
        return (
            f"Sequence({self.order}, {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens} of ≤ {self.max_num_tokens})"
        )
