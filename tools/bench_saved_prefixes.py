"""How fast cached prefixes are saved and restored, in MB/s.

    python tools/bench_saved_prefixes.py MODEL DIR [MB]

Fills the KV cache of a model with MB of random blocks under random tokens (nothing is computed),
saves them into DIR, and restores them into a second engine; three times, the best of each. What is
read comes from the system's file cache. Saving is told with and without making it last (fsync),
which is the disk's time.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from headrace.engine.llm import LLM
from headrace.engine.model import native_executor
from headrace.engine.prefix import saved_file
from headrace.ops.native import NativeModel

RUN_POSITIONS = 1024


def fill(llm: LLM, num_bytes: int) -> None:
    """Random sequences in the prefix tree, for so many bytes of KV."""
    engine, rng = llm.engine, np.random.default_rng(1)
    tree, manager, executor = engine.cache.tree, engine.manager, engine.executor
    assert tree is not None
    sizes = [executor.read_block(group, 0).size for group in range(manager.num_groups)]
    used = 0
    while used < num_bytes:
        blocks = manager.open(RUN_POSITIONS)
        assert blocks is not None
        if manager.fit(blocks, 0, RUN_POSITIONS) < RUN_POSITIONS:
            sys.exit(f"The KV cache holds {used / 1e6:.0f} MB only.")
        manager.extend(blocks, 0, RUN_POSITIONS)
        manager.trim(blocks, RUN_POSITIONS)
        for group, size in enumerate(sizes):
            for block in blocks.held(group):
                executor.write_block(group, block, rng.integers(0, 256, size, np.uint8))
                used += size
        tokens = rng.integers(0, engine.vocabulary.num_ids, RUN_POSITIONS).tolist()
        tree.insert(tokens, blocks, RUN_POSITIONS, entry_from=RUN_POSITIONS)
        manager.close(blocks)


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    num_bytes = int(float(sys.argv[3]) * 1e6) if len(sys.argv) > 3 else 500_000_000
    first = LLM(name, max_model_len=2048, kv_cache_memory=int(num_bytes * 1.5))
    executor = first.engine.executor
    assert isinstance(executor, NativeModel)
    make = partial(native_executor, weights=executor.weights)
    fill(first, num_bytes)
    began = time.monotonic()
    first.engine.cache.saved_in(directory)
    print(f"hash of the model: {time.monotonic() - began:.3f} s")
    saves, lasting, restores = [], [], []
    for _ in range(3):
        fsync, saved_file.os.fsync = os.fsync, lambda file: None
        began = time.monotonic()
        report = first.engine.cache.save(directory)
        saves.append(report.num_bytes / (time.monotonic() - began))
        saved_file.os.fsync = fsync
        assert report.reason is None, report.reason
        began = time.monotonic()
        report = first.engine.cache.save(directory)
        lasting.append(report.num_bytes / (time.monotonic() - began))
        second = LLM(
            first.model, make_executor=make, max_model_len=2048,
            kv_cache_memory=int(num_bytes * 1.5),
        )  # fmt: skip
        second.engine.cache.saved_in(directory)  # the hash has its own line
        began = time.monotonic()
        restored = second.engine.cache.restore(directory)
        restores.append(restored.num_bytes / (time.monotonic() - began))
        assert restored.reason is None, restored.reason
        assert restored.num_positions == report.num_positions
    for what, rates in (("save", saves), ("save, lasting", lasting), ("restore", restores)):
        print(f"{name} {what}: {max(rates) / 1e6:,.0f} MB/s of {report.num_bytes / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
