"""What each block of a KV pool is used for, read beside the engine's steps.

    free     nobody holds it            shared   several requests or pins do
    owned    one request or pin does    cached   only the prefix tree does

A step may move a few blocks while this looks; what is counted always adds up to all blocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.engine.pools import BlockPool

#: In the order of the codes 0 … 3; their first letters stand for them on a map.
STATES: Final = ("free", "owned", "shared", "cached")
_LETTERS = np.frombuffer(b"fosc", np.uint8)
#: Of a cell in which two states are equally common, the first of these.
_PRECEDENCE = (2, 1, 3, 0)


def block_states(pool: BlockPool) -> npt.NDArray[np.int32]:
    """The code of every block."""
    held = np.array(pool.ref_counts, np.int32)
    by_others = held - np.array(pool.tree_counts, np.int32)
    states = np.minimum(np.maximum(by_others, 0), 2)
    states[(by_others <= 0) & (held > 0)] = STATES.index("cached")
    return states


def state_counts(states: npt.NDArray[np.int32]) -> dict[str, int]:
    """State → number of blocks."""
    return dict(zip(STATES, np.bincount(states, minlength=len(STATES)).tolist(), strict=True))


def state_map(states: npt.NDArray[np.int32], max_cells: int) -> tuple[str, int]:
    """A letter for every cell, in the order of the blocks, and how many neighbouring blocks a cell
    has: as few as max_cells allows. A cell shows its commonest state."""
    size = max(-(-len(states) // max_cells), 1)
    starts = np.arange(0, len(states), size)
    counts = [np.add.reduceat(states == code, starts, dtype=np.int64) for code in _PRECEDENCE]
    commonest = np.array(_PRECEDENCE)[np.argmax(counts, axis=0)]
    return _LETTERS[commonest].tobytes().decode("ascii"), size
