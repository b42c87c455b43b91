"""A toy engine's prefix tree, saved and restored: what the tests of saving share.

The toy's KV memory holds token ids, so whether a block belongs to the tokens that the tree says it
belongs to can be read off every block.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from toy import FULL, VOCAB, ToyModel, make_engine, run_all, window_group

from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams
from headrace.engine.prefix.node import Node
from headrace.ops.kv import KVGroupSpec

Groups = tuple[KVGroupSpec, ...]
KINDS: list[Groups] = [(FULL,), (FULL, window_group()), (window_group(9), window_group(33))]
B = 4


def engine_of(groups: Groups, blocks: int = 200) -> Engine:
    """An engine with so many blocks in each pool."""
    return make_engine(
        ToyModel(groups), block_size=B, num_blocks=[blocks] * len(groups), prefix_caching=True
    )


def prompts(seed: int, count: int) -> list[list[int]]:
    """Prompts of all lengths, most of which begin like another one."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for _ in range(count):
        stem = rng.choice(made) if made and rng.random() < 0.7 else []
        stem = stem[: rng.randrange(len(stem) + 1)]
        made.append(stem + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))])
    return [prompt[:80] for prompt in made]


def fill(engine: Engine, wanted: list[list[int]]) -> None:
    """Computes prompts, for two tenants in turns."""
    for i, prompt in enumerate(wanted):
        engine.add(prompt, SamplingParams(temperature=0, max_tokens=3), cache_salt=salt_of(i))
        run_all(engine)


def salt_of(i: int) -> str:
    return ("", "tenant \N{SNOWMAN}")[i % 3 == 0]


def nodes(engine: Engine) -> list[tuple[str, Node]]:
    assert engine.cache.tree is not None
    return list(engine.cache.tree.nodes())


def start_of(engine: Engine, prompt: list[int], salt: str) -> int:
    """Where a prompt would start to be computed."""
    assert engine.cache.tree is not None
    return engine.cache.tree.peek([*prompt, 0], salt)


def assert_sound(engine: Engine) -> int:
    """Every position that the tree holds has, in the memory of its block, the token that the tree
    says; number of positions looked at."""
    assert engine.cache.tree is not None
    engine.check_invariants()
    engine.cache.tree.check()
    store, model = engine.cache.tree.store, engine.executor
    assert isinstance(model, ToyModel)
    looked_at = 0
    for _, node in nodes(engine):
        path = np.concatenate([np.frombuffer(part.tokens, np.int32) for part in node.path()])
        held = [(g, node.start // B, node.blocks[k :: len(store.full_groups)])
                for k, g in enumerate(store.full_groups)]  # fmt: skip
        if node.entry is not None:
            held += zip(
                store.window_groups, node.entry.first_columns, node.entry.blocks, strict=True
            )
        for group, first, blocks in held:
            tokens = path[first * B :]
            memory = model.memory[group].reshape(-1, B)[np.array(blocks, int)].reshape(-1)
            assert memory[: len(tokens)].tolist() == tokens.tolist()
            looked_at += len(tokens)
    return looked_at


def saved_file(directory: Path) -> Path:
    [path] = directory.glob("*.prefixes")
    return path
