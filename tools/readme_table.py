"""The table of measured speed in README.md, from docs/performance.json."""

from __future__ import annotations

import re
from collections.abc import Iterator

from performance_page import (
    BATCH,
    GENERATION,
    MODELS,
    PROMPT,
    Report,
    aims,
    measured_rate,
    number,
)

BEGIN = "<!-- speed: written by tools/write_performance.py -->"
END = "<!-- end of speed -->"


def in_readme(readme: str, data: Report) -> str:
    """readme with the lines between BEGIN and END made of data. Raises ValueError where a mark is
    missing."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md needs one {BEGIN!r} and, below it, one {END!r}.")
    made = "\n".join([BEGIN, *_lines(data), END])
    pattern = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    return re.sub(pattern, lambda _: made, readme, flags=re.DOTALL)


def _lines(data: Report) -> Iterator[str]:
    yield (
        "| | prompt of 512 | % of bound | × llama.cpp | generation | % of bound | × llama.cpp "
        + ("| 32 sequences | × llama.cpp |")
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    shown = {(aim.what, aim.model): aim.shown for aim in aims(data)}
    for model, title in MODELS.items():
        cells = [
            _rate(data, f"speed:{model}", PROMPT),
            shown["prompt 512, % of the bound", title],
            shown["prompt 512, × llama.cpp", title],
            _rate(data, f"speed:{model}", GENERATION),
            shown["generation, % of the bound", title],
            shown["generation batch 1, × llama.cpp", title],
            _rate(data, f"batch:{model}", BATCH),
            shown["32 sequences (128 in, 64 out), × llama.cpp", title],
        ]
        yield f"| {title} | " + " | ".join(cells) + " |"
    found = [data[f"{part}:{model}"] for part in ("speed", "batch") for model in MODELS
             if f"{part}:{model}" in data]  # fmt: skip
    if found:
        c = found[0]["conditions"]
        yield ""
        yield f"Tokens per second, medians; {c['cpu']}, {c['threads']} threads, {c['isa']}."


def _rate(data: Report, part: str, test: str) -> str:
    rate = measured_rate(data, part, test)
    return "not measured" if rate is None else number(rate)
