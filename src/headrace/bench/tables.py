"""Tables for people: aligned text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def figures(value: float) -> str:
    """Three or more figures: 4711, 61.2, 3.14."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first to the left, the others to the right."""
    table = [headers, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(headers))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same as Markdown."""
    lines = ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in (headers, *rows)]
    lines.insert(1, "|---|" + "---:|" * (len(headers) - 1))
    return lines
