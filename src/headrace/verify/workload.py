"""What the ladder runs on: token sequences long enough to cross every border there is.

Borders of the native arithmetic are absolute positions: KV blocks of 16, attention tiles of 128,
segments of 512, and the edge of a sliding window. The long text crosses at least three tiles, two
segments and each window; logits are compared at the positions around the borders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.ops.kv import KVGroupSpec

TILE = 128
SEGMENT = 512
#: The long text: nine tiles, more than two segments.
LONG = 1160
#: Positions left for what is generated after it.
OUTPUT_ROOM = 48
#: The short form of it: five tiles, two segments.
QUICK = 600

_SENTENCES = (
    "The river rises in the hills and runs for ninety miles before it meets the sea.",
    "A mill stands where the water is drawn off into a narrow channel called the headrace.",
    "def area(width, height): return width * height  # in square metres",
    "In 1847 the wheel turned eleven times a minute; today it turns for visitors on Sundays.",
    "Wer den Müller fragt, hört, dass der Bach im August kaum noch Wasser führt.",
    "The gate has three positions: shut, half open, and open to the second mark.",
    "Si l'on ferme la vanne trop vite, une vague remonte le canal jusqu'au pont.",
    "She wrote the levels down every evening: 41, 38, 38, 36, 35, and then rain.",
    "If the pressure is p and the flow is q, the power is p times q, less what the pipe takes.",
    "Nobody remembers who built the second pond, but its wall is straighter than the first.",
    "for i in range(10): total += levels[i] if levels[i] > 0 else 0",
    "水は低いところへ流れる。だから、水車は低いところに建てられた。",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """text: token ids. edges: positions whose logits are compared, ascending. few: those of them
    that even a recomputation from nothing can afford. shorts: prompts for batches, of unequal
    lengths around the borders; parts of the text from different places."""

    text: list[int]
    edges: tuple[int, ...]
    few: tuple[int, ...]
    shorts: tuple[list[int], ...]


def make_workload(
    encode: Callable[[str], list[int]] | None,
    num_ids: int,
    max_context: int,
    groups: tuple[KVGroupSpec, ...],
    block_size: int = 16,
    length: int = LONG,
) -> Workload:
    """encode: the model's tokenizer; None = pseudo-random ids below num_ids. The text is shortened
    to a small model's context (OUTPUT_ROOM positions are left)."""
    windows = [g.window for g in groups if g.window is not None]
    length = min(max([length, *(w + 3 * block_size for w in windows)]), max_context - OUTPUT_ROOM)
    text = _text_ids(encode, length) if encode else _random_ids(num_ids, length)
    borders = {block_size, TILE, 3 * TILE, SEGMENT, 2 * SEGMENT, *windows}
    borders |= {w + block_size for w in windows}
    edges = {p + d for p in borders for d in (-1, 0, 1)} | {0, length - 1}
    edges = {p for p in edges if 0 <= p < length}
    few = {p for p in edges if p in (block_size, TILE, SEGMENT, 2 * SEGMENT, length - 1)}
    few |= {w + d for w in windows for d in (-1, 0) if w + d < length}
    shorts = []
    for i, size in enumerate((5, block_size, TILE - 1, TILE + 1, 2 * TILE + 3, SEGMENT - 2)):
        start = min(37 * i, length - size)
        if start >= 0:
            shorts.append(text[start : start + size])
    return Workload(text, tuple(sorted(edges)), tuple(sorted(few)), tuple(shorts))


def _text_ids(encode: Callable[[str], list[int]], length: int) -> list[int]:
    ids: list[int] = []
    number = 0
    while len(ids) < length:
        number += 1
        sentence = _SENTENCES[(number * number + number // 7) % len(_SENTENCES)]
        ids += encode(f"{number}. {sentence}\n")
    return ids[:length]


def _random_ids(num_ids: int, length: int) -> list[int]:
    state, ids = 12345, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % num_ids)
    return ids
