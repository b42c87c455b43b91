"""Chunks of a step: what causal attention sees, against enumeration; sums of costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ops.counts import Chunk

WINDOWS = st.none() | st.integers(1, 50)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    context = draw(st.integers(1, 60))
    return Chunk(draw(st.integers(1, context)), context)


def seen(chunk: Chunk, window: int | None) -> list[tuple[int, int]]:
    """Every (query, position) pair, from the definition in ops/contract.py."""
    return [
        (query, position)
        for query in range(chunk.start, chunk.context)
        for position in range(chunk.context)
        if position <= query and (window is None or position > query - window)
    ]


@given(chunks(), WINDOWS)
def test_visible_pairs_by_enumeration(chunk: Chunk, window: int | None) -> None:
    pairs = seen(chunk, window)
    assert chunk.visible_pairs(window) == len(pairs)
    older = {position for _, position in pairs if position < chunk.start}
    assert chunk.visible_before(window) == len(older)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 30), WINDOWS)
def test_the_pairs_of_chunks_add_up_to_the_whole(
    sizes: list[int], start: int, window: int | None
) -> None:
    ends = [start + sum(sizes[: i + 1]) for i in range(len(sizes))]
    cut = sum(Chunk(n, end).visible_pairs(window) for n, end in zip(sizes, ends, strict=True))
    assert cut == Chunk(sum(sizes), ends[-1]).visible_pairs(window)


@pytest.mark.parametrize(("new", "context"), [(0, 5), (-1, 5), (6, 5), (1, 0)])
def test_new_tokens_must_fit_into_the_context(new: int, context: int) -> None:
    with pytest.raises(ValueError, match=f"{new} new tokens in a context of {context}"):
        Chunk(new, context)
