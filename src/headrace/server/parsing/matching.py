"""Tags that may be cut by the borders of pieces."""

from __future__ import annotations


def possible_start(text: str, tag: str) -> int:
    """Length of the longest end of `text` with which the tag begins, the whole tag excepted."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
