"""Stop strings: nothing of one reaches the client, wherever the tokens are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.stopping import StopFilter


def feed(
    pieces: list[str], stops: list[str], include: bool = False
) -> tuple[list[str], str | None]:
    """What a client sees piece by piece, and the stop string that matched."""
    stop = StopFilter(stops, include)
    seen = []
    for piece in pieces:
        seen.append(stop.push(piece))
        if stop.matched is not None:
            return seen, stop.matched
    seen.append(stop.flush())
    return seen, None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_part_of_a_stop_string_never_reaches_the_client(size: int) -> None:
    text = "ABCDEFGHIJ K"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    seen, matched = feed(pieces, ["DEFGHIJ"])
    assert "".join(seen) == "ABC"
    assert matched == "DEFGHIJ"


def test_a_stop_string_over_a_token_border() -> None:
    assert feed(["alpha", " beta", " gam", "ma delta"], ["beta gamma"]) == (
        ["alpha", " ", "", ""],
        "beta gamma",
    )


def test_nothing_after_the_match_leaks() -> None:
    seen, _ = feed(["one, two, ", "three, four, fi", "ve, six"], ["five"])
    assert "".join(seen) == "one, two, three, four, "


def test_a_false_start_is_released_as_soon_as_it_is_one() -> None:
    assert feed(["a<", "|e", "x", "y"], ["<|end|>"]) == (["a", "", "<|ex", "y", ""], None)


def test_held_text_is_released_at_the_end() -> None:
    assert feed(["a<|en"], ["<|end|>"]) == (["a", "<|en"], None)


def test_overlapping_starts() -> None:
    assert feed(["aa", "ab"], ["aab"]) == (["", "a"], "aab")


def test_include_keeps_the_stop_string_and_nothing_behind_it() -> None:
    assert feed(["xS", "TOPy"], ["STOP"], include=True) == (["x", "STOP"], "STOP")


def test_the_match_that_ends_first_wins_and_then_the_longest() -> None:
    for pieces in (["abcd"], ["a", "b", "c", "d"]):
        assert feed(pieces, ["abcd", "bc"])[1] == "bc"
    assert feed(["xyz"], ["yz", "xyz"]) == ([""], "xyz")


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_the_result_depends_on_the_text_not_on_the_cuts(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    seen, matched = feed([*pieces, rest], stops)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    if not ends:
        assert ("".join(seen), matched) == (text, None)
    else:
        _, start, stop = min(ends)
        assert ("".join(seen), matched) == (text[:start], stop)
    released = ""
    for piece in seen[:-1]:  # what is out is never taken back, and never holds a whole match
        released += piece
        assert text.startswith(released)
        assert not any(stop in released for stop in stops)
