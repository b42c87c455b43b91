"""Prompt lookup: what it finds, what it proposes, and that edits are picked up again at once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.speculation.copying import CopyTracker, Grade
from headrace.engine.speculation.drafter import NUM_GRADES
from headrace.engine.speculation.ngram import priors
from headrace.engine.speculation.ngram_index import NgramIndex

small_texts = st.lists(st.integers(0, 3), max_size=80)


def _longest(tokens: list[int], max_length: int) -> int:
    """Of the runs that end before the end of the text and are like its end; 0 below two tokens."""
    best = 0
    for end in range(2, len(tokens)):
        length = 0
        while length < min(max_length, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= 2 else 0


@given(small_texts, st.integers(0, 80))
@settings(max_examples=150, deadline=None)
def test_index_finds_the_longest_earlier_run(tokens: list[int], first: int) -> None:
    index = NgramIndex(tokens[:first])
    while len(index) < len(tokens):
        index.add(tokens)
    place, length = index.longest_match(tokens, max_length=16, max_places=100, max_room=8)
    assert length == _longest(tokens, 16)
    if length:
        assert tokens[place + 1 - length : place + 1] == tokens[len(tokens) - length :]
        assert place < len(tokens) - 1
    else:
        assert place == -1


def test_index_is_the_same_whether_built_or_grown() -> None:
    rng = random.Random(1)
    tokens = [rng.choice((rng.randrange(200_000), 7, 8)) for _ in range(5000)]
    built, grown = NgramIndex(tokens), NgramIndex([])
    while len(grown) < len(tokens):
        grown.add(tokens)
    sizes = {"max_length": 16, "max_places": 64, "max_room": 8}
    for _ in range(200):
        tokens.append(rng.choice(tokens))
        built.add(tokens)
        grown.add(tokens)
        assert built.longest_match(tokens, **sizes) == grown.longest_match(tokens, **sizes)


@given(small_texts, small_texts, st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_proposals_are_bounded_and_do_not_depend_on_when_it_is_asked(
    prompt: list[int], output: list[int], limit: int
) -> None:
    often, rarely, tokens = CopyTracker(), CopyTracker(), list(prompt)
    rarely.propose(tokens, 1)
    often.propose(tokens, 1)
    for token in output:
        tokens.append(token)
        drafts, grades = often.propose(tokens, limit)
        assert len(drafts) == len(grades) <= limit
        assert set(drafts) <= set(tokens)
        assert all(0 <= grade < NUM_GRADES for grade in grades)
    assert often.propose(tokens, limit) == rarely.propose(tokens, limit)


def _edit(
    rng: random.Random, length: int, old: list[int], new: list[int], every: int
) -> tuple[list[int], list[int]]:
    """A text of tokens of which hardly a pair comes twice, with `old` in it here and there; and the
    same with `new` instead."""
    source: list[int] = []
    edited: list[int] = []
    for place in range(length):
        token = rng.randrange(1000, 4000)
        source.append(token)
        edited.append(token)
        if place % every == every - 1:
            source += old
            edited += new
    return source, edited


def _decode(prompt: list[int], output: list[int], limit: int) -> tuple[list[int], int, int]:
    """Places in the output where a draft was wrong, rounds, drafts, of guessing `output`."""
    tracker, tokens = CopyTracker(), list(prompt)
    done = rounds = drafted = 0
    wrong = []
    while done < len(output):
        drafts, _ = tracker.propose(tokens, limit)
        drafted += len(drafts)
        rounds += 1
        kept = 0
        while kept < len(drafts) and done + kept < len(output):
            if drafts[kept] != output[done + kept]:
                wrong.append(done + kept)
                break
            kept += 1
        gained = min(kept + 1, len(output) - done)
        tokens += output[done : done + gained]
        done += gained
    return wrong, rounds, drafted


@pytest.mark.parametrize(
    ("old", "new"),
    [([10], [20]), ([10, 11], [20]), ([10], [20, 21, 22]), ([10, 11, 12], [10, 21, 12])],
)
def test_a_rename_is_learned_and_the_copy_taken_up_behind_it(
    old: list[int], new: list[int]
) -> None:
    source, edited = _edit(random.Random(2), 600, old, new, 30)
    begin = source[:3]  # the answer begins like the file
    wrong, rounds, _ = _decode([1, 2, *source, 3, *begin], edited[3:], 15)
    # The first rename is a surprise, and what it was is not known before the copy goes on. Each
    # of the other 19 costs nothing: one surprise at most, where a context is new.
    assert len(wrong) <= 3
    assert max(wrong) < 150
    assert rounds <= len(edited) / 16 + 10


def test_a_rule_that_stopped_being_right_is_given_up() -> None:
    source, edited = _edit(random.Random(3), 300, [10], [20], 30)
    more, kept = _edit(random.Random(4), 300, [10], [10], 30)
    wrong, _, _ = _decode([*source, *more, 3, *source[:3]], [*edited, *kept][3:], 15)
    after = [place for place in wrong if place > len(edited)]
    assert len(after) <= 3  # of ten places where the name now stays


def test_nothing_is_proposed_where_nothing_came_twice() -> None:
    assert _decode(list(range(500)), list(range(1000, 1500)), 15)[2] == 0
    for tokens in ([], [5], [5, 6]):
        assert CopyTracker().propose(tokens, 4) == ([], [])


def test_a_loop_is_followed() -> None:
    wrong, rounds, _ = _decode([9, 1, 2, 3, 1, 2, 3], [1, 2, 3] * 60, 12)
    assert not wrong
    assert rounds < 40


def test_every_grade_has_a_prior() -> None:
    assert len(priors()) == NUM_GRADES > max(Grade)
    assert all(0 < rate < 1 for rate in priors())
    runs = [priors()[grade] for grade in (Grade.RUN_2, Grade.RUN_4, Grade.RUN_9, Grade.RUN_16)]
    assert runs == sorted(runs)
