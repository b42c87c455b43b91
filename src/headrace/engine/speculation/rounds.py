"""Rounds: from the logits of a verify step to the tokens that stay.

    sequence … x │ a b c      drafts a b c behind the newest token x, one row of logits each
    row 0 (x): draws a = draft 1: stays     round 1 draws from row 1
    row 1 (a): draws q ≠ draft 2: stays     the round ends; rows 2 and 3 are never looked at

Round j draws from row j of all sequences whose first j drafts stayed. With the coupled rule it
draws as if there were no draft, so the text is that of plain decoding; the rejection rule
(rejection.py) keeps a draft more often, and never draws it where it does not keep it. A token is
accepted by its Generation (penalties, grammar, stop conditions, text) before the next row is drawn
from, so nothing ever has to be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listing

from headrace.engine.generation import Generation
from headrace.engine.outputs import Delta
from headrace.engine.request import Sequence
from headrace.engine.sampler import DraftedToken
from headrace.engine.scoring import Logits
from headrace.engine.speculation.choice import Acceptance
from headrace.engine.speculation.drafter import Distribution, Draft
from headrace.engine.speculation.rejection import drafted


class Trial:
    """A sequence's part in one step. generation, draft: as proposed; what of the draft the step
    computes stands in sequence.drafts. row: its first logit row. delta: of all tokens so far."""

    __slots__ = ("delta", "draft", "generation", "num_accepted", "num_before", "num_tested", "row")

    def __init__(self, generation: Generation, draft: Draft) -> None:
        self.generation = generation
        self.draft = draft
        self.num_before = len(generation.token_ids)
        self.num_tested = 0
        self.num_accepted = 0
        self.row = -1  # until it is drawn from
        self.delta: Delta | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that the sequence has gained."""
        return len(self.generation.token_ids) - self.num_before

    @property
    def next_row(self) -> int:
        """The logit row to draw from."""
        return self.row + self.num_accepted

    @property
    def next_draft(self) -> int | None:
        """The draft that the next token is compared with; None behind the last one."""
        drafts = self.generation.sequence.drafts
        return drafts[self.num_accepted] if self.num_accepted < len(drafts) else None

    @property
    def next_distribution(self) -> Distribution | None:
        """What the next draft was drawn from; None = it was certain."""
        given = self.draft.distributions
        return None if given is None else given[self.num_accepted]

    def judge(self, delta: Delta) -> bool:
        """Takes in what was just drawn; whether the next row is to be drawn from."""
        if self.delta is None:
            self.delta = delta
        else:
            self.delta.extend(delta)
        draft = self.next_draft
        if draft is None or not delta.token_ids:
            return False
        self.num_tested += 1
        if delta.token_ids[-1] != draft:
            return False
        self.num_accepted += 1
        return self.generation.finish_reason is None


def first_rows(drawing: Listing[Sequence], num_rows: int) -> Iterable[int]:
    """The first logit row of each sequence; num_rows: of all."""
    if num_rows == len(drawing):
        return range(num_rows)
    rows, row = [], 0
    for sequence in drawing:
        rows.append(row)
        row += 1 + len(sequence.drafts)
    assert row == num_rows, "logit rows and drafts disagree"
    return rows


def pick(logits: Logits, rows: list[int]) -> Logits:
    """Some rows, in their order; a view where they are neighbours."""
    count = len(rows)
    first = rows[0] if rows else 0
    if rows == list(range(first, first + count)):
        return logits[first : first + count]
    chosen: Logits = logits[rows]
    return chosen


def tested_drafts(
    trials: Mapping[Sequence, Trial], generations: Listing[Generation]
) -> list[DraftedToken | None] | None:
    """Of each generation's row, the draft that the rejection rule decides on; None where the row is
    drawn plainly, and for all where all are."""
    drafts: list[DraftedToken | None] = []
    for generation in generations:
        choice, trial = generation.request.speculation, trials.get(generation.sequence)
        rejects = choice is not None and choice.acceptance is Acceptance.REJECTION
        draft = trial.next_draft if rejects and trial is not None else None
        if trial is None or draft is None:
            drafts.append(None)
        else:
            drafts.append(drafted(draft, trial.next_distribution))
    return drafts if any(draft is not None for draft in drafts) else None
