"""Following a copy: what comes next if the text goes on repeating something that stood before.

A model that edits code writes most of the file again and changes a little everywhere:

    source   … self . |mutex| = …          the copy runs along the source until a token differs,
    output   … self . |gate | = …          and takes it up again behind what was replaced

So a copy that is lost is looked for again right behind the place where it was lost, before the rest
of the text is asked; and what stood there in the source and what came instead becomes a rule (old
tokens → new tokens), which later proposals apply by themselves. Rules that are wrong are forgotten
by their own score. Knows token ids only; what it proposes may be wrong, the target decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from headrace.engine.speculation.ngram_index import NgramIndex

_MAX_LENGTH = 32  # of a match; longer ones are not told apart
_MAX_PLACES = 32  # of a pair, looked at per search
_ROOM = 16  # tokens that should follow a match
_RESUME_WITHIN = 12  # source tokens behind the place where a copy was lost
_GIVE_UP_AFTER = 16  # output tokens
_LOOP = 6  # tokens that have to match for another time round a loop
_CONFIRMED = 3  # tokens in a row: the copy was rightly resumed
_MAX_OLD, _MAX_NEW = 8, 16  # tokens of a rule's sides
_MAX_SCORE = 3


class Grade(IntEnum):
    """How a proposed token was found; see drafter.Draft.grades."""

    BLIND = 0  # one token was replaced just now, and nothing says by how many
    RESUMED = 1  # a copy resumed on few tokens
    RULE = 2
    RUN_2 = 3  # behind a match of 2 tokens; then by longer ones
    RUN_3 = 4
    RUN_4 = 5
    RUN_6 = 6
    RUN_9 = 7
    RUN_16 = 8


#: Length of a match → grade.
_GRADE_OF_RUN = [Grade.RESUMED] * 2 + [
    Grade.RUN_2 if n < 3 else
    Grade.RUN_3 if n < 4 else
    Grade.RUN_4 if n < 6 else
    Grade.RUN_6 if n < 9 else
    Grade.RUN_9 if n < 16 else Grade.RUN_16
    for n in range(2, _MAX_LENGTH + 1)
]  # fmt: skip


@dataclass(slots=True)
class _Rule:
    """old tokens become new ones. score: how often that was right lately, ≤ 0 = not to be applied;
    scores: the same by the token in front, where it was ever wrong or right there."""

    old: list[int]
    new: list[int]
    score: int = 1
    scores: dict[int, int] = field(default_factory=dict)

    def applies(self, before: int) -> bool:
        return self.scores.get(before, self.score) > 0

    def note(self, before: int, *, right: bool) -> None:
        step = 1 if right else -1
        self.score = max(-_MAX_SCORE, min(self.score + step, _MAX_SCORE))
        self.scores[before] = step


class CopyTracker:
    """One per sample. `propose` first takes in the tokens that are new since its last call.

    State: the next token is expected to be tokens[source], or, inside a rule, the rule's
    new[rule_at]; `run` tokens up to here matched. source −1: nothing is being copied. lost_at: the
    source place where the copy was lost, −1 = it was not, or too long ago; the output differs from
    lost_output on.
    """

    __slots__ = (
        "_blind", "_index", "_lost_at", "_lost_output", "_resumed_at", "_resumed_output", "_rule",
        "_rule_at", "_rules", "_run", "_source",
    )  # fmt: skip

    def __init__(self) -> None:
        self._index: NgramIndex | None = None
        self._rules: dict[int, list[_Rule]] = {}
        self._rule: _Rule | None = None
        self._rule_at = 0
        self._source = -1
        self._run = 0
        self._blind = False
        self._lost_at = self._lost_output = -1
        self._resumed_at = self._resumed_output = -1

    def propose(self, tokens: list[int], limit: int) -> tuple[list[int], list[int]]:
        """(tokens, grades) that may follow `tokens`, at most `limit`; a list that only grows."""
        self._catch_up(tokens)
        if self._source < 0:
            return [], []
        drafts: list[int] = []
        grades: list[int] = []
        rule, at, run = self._rule, self._rule_at, self._run
        source = self._source if rule else self._roomy_source(tokens, limit)
        end = len(tokens)
        while len(drafts) < limit and source < end:
            if rule is None and self._rules:
                rule, at = self._rule_for(tokens, source, end), 0
            if rule is not None:
                new = rule.new[at : at + limit - len(drafts)]
                drafts += new
                grades += [Grade.RULE] * len(new)
                source += len(rule.old)
                rule = None
                continue
            drafts.append(tokens[source])
            grades.append(Grade.BLIND if self._blind else _GRADE_OF_RUN[min(run, _MAX_LENGTH)])
            source += 1
            run += 1
        return drafts, grades

    # ---- taking in what was decoded ---------------------------------------------------------

    def _catch_up(self, tokens: list[int]) -> None:
        if self._index is None:
            self._index = NgramIndex(tokens)
            self._search(tokens, len(tokens))
            return
        for place in range(len(self._index), len(tokens)):
            self._index.add(tokens)
            self._take(tokens, place)

    def _take(self, tokens: list[int], place: int) -> None:
        """The token at `place` is new."""
        if self._source >= 0 and self._follow(tokens, place):
            self._run += 1
            self._blind = False
            if self._run == _CONFIRMED and self._resumed_at >= 0:
                self._learn(tokens)
            return
        if self._lost_at >= 0 and place - self._lost_output >= _GIVE_UP_AFTER:
            self._lost_at = -1
        if self._resume(tokens, place):
            return
        self._search(tokens, place + 1)
        if self._source < 0 and place == self._lost_output:
            self._source, self._run, self._blind = self._lost_at + 1, 0, True
            self._resumed_at, self._resumed_output = self._source, place + 1

    def _follow(self, tokens: list[int], place: int) -> bool:
        """Whether the token at `place` is what the copy, or a rule in it, has now."""
        token, source = tokens[place], self._source
        if source >= place:  # the match ran into the end of the text
            return False
        rule = self._rule
        if (
            rule is None
            and self._rules
            and (rule := self._rule_for(tokens, source, place)) is not None
        ):
            self._rule, self._rule_at = rule, 0
        if rule is None:
            if token == tokens[source]:
                self._source = source + 1
                return True
            self._lose(source, place)
            return False
        at = self._rule_at
        if token == rule.new[at]:
            self._rule_at = at + 1
            if self._rule_at == len(rule.new):
                rule.note(tokens[source - 1], right=True)
                self._source, self._rule = source + len(rule.old), None
            return True
        rule.note(tokens[source - 1], right=False)
        self._rule = None
        if at == 0 and token == tokens[source]:
            self._source = source + 1
            return True
        self._lose(source, place - at)
        return False

    def _lose(self, source: int, output: int) -> None:
        """The copy ended in front of tokens[source]; the text differs from `output` on. An earlier
        place stays the one to return to while what was followed since was short."""
        if self._lost_at < 0 or (self._run >= _CONFIRMED and not self._blind):
            self._lost_at, self._lost_output = source, output
        self._source, self._rule, self._resumed_at = -1, None, -1
        self._blind = False

    def _resume(self, tokens: list[int], place: int) -> bool:
        """Takes the copy up behind the place where it was lost, if the new token stands there."""
        if self._lost_at < 0:
            return False
        last = min(self._lost_at + _RESUME_WITHIN, self._lost_output)
        try:
            found = tokens.index(tokens[place], self._lost_at, last)
        except ValueError:
            return False
        self._resumed_at, self._resumed_output = found, place
        self._source, self._run = found + 1, 1
        return True

    def _search(self, tokens: list[int], end: int) -> None:
        """Follows the longest match of tokens[:end]'s end, if it has one."""
        assert self._index is not None
        found, self._run = self._index.longest_match(
            tokens, max_length=_MAX_LENGTH, max_places=_MAX_PLACES, max_room=_ROOM
        )
        self._source = found + 1 if found >= 0 else -1
        self._blind = False

    def _roomy_source(self, tokens: list[int], room: int) -> int:
        """The place to copy from. A text that repeats itself was matched with its own end, and
        little is known behind that: then that of an earlier time round."""
        assert self._index is not None
        if len(tokens) - self._source < room and self._run >= _LOOP:
            found, length = self._index.longest_match(
                tokens, max_length=_LOOP, max_places=_MAX_PLACES, max_room=room
            )
            if length == _LOOP and found + 1 < self._source:
                return found + 1
        return self._source

    # ---- rules ------------------------------------------------------------------------------

    def _rule_for(self, tokens: list[int], source: int, end: int) -> _Rule | None:
        """The rule for what stands at `source`, in front of `end`."""
        for rule in self._rules.get(tokens[source], ()):
            old = rule.old
            stop = source + len(old)
            if stop <= end and tokens[source:stop] == old and rule.applies(tokens[source - 1]):
                return rule
        return None

    def _learn(self, tokens: list[int]) -> None:
        """The copy was resumed rightly: what it skipped became what came instead."""
        old_end, new_end = self._resumed_at, self._resumed_output
        while (
            old_end > self._lost_at
            and new_end > self._lost_output
            and tokens[old_end - 1] == tokens[new_end - 1]
        ):
            old_end, new_end = old_end - 1, new_end - 1
        old, new = tokens[self._lost_at : old_end], tokens[self._lost_output : new_end]
        self._lost_at = self._resumed_at = -1
        if not (0 < len(old) <= _MAX_OLD and 0 < len(new) <= _MAX_NEW):
            return
        rules = self._rules.setdefault(old[0], [])
        rules[:] = [rule for rule in rules if rule.old != old]
        rules.insert(0, _Rule(old, new))
        rules.sort(key=lambda rule: -len(rule.old))
