"""Copy-on-write carried out: what the block manager noted becomes copies in the KV memory."""

from __future__ import annotations

from itertools import groupby

from headrace.engine.blocks import BlockManager
from headrace.ops.executor import Executor


def make_copies(manager: BlockManager, executor: Executor) -> int:
    """Makes the pending copies, in the order in which the blocks were given out; how many."""
    copies = manager.take_copies()
    for group, pairs in groupby(copies, key=lambda copy: copy[0]):
        executor.copy_blocks(group, [(source, target) for _, source, target in pairs])
    return len(copies)
