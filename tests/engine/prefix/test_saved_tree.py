"""Saving and restoring a prefix tree: what comes back is what was there, or says why not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from saved_toy import (
    KINDS,
    B,
    Groups,
    assert_sound,
    engine_of,
    fill,
    nodes,
    prompts,
    salt_of,
    saved_file,
    start_of,
)
from toy import VOCAB, ToyModel, expected_tokens, make_engine, run_all

from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams
from headrace.engine.prefix import saved_file as file_module
from headrace.engine.prefix import saved_write
from headrace.engine.prefix.saved_file import SaveWriter
from headrace.engine.prefix.saved_write import PrefixSave
from headrace.errors import UsageError

ROOT = Path(__file__).parents[3]


def leaves(engine: Engine) -> list[tuple[str, bytes]]:
    """(salt, path) of what can be evicted, most recently used first."""
    return [
        (salt, b"".join(part.tokens for part in node.path()))
        for salt, node in nodes(engine)
        if node.entry is not None or not node.children
    ]


@pytest.mark.parametrize("groups", KINDS)
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_a_restored_tree_is_the_same_tree(
    groups: Groups, piece_bytes: int, save_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_write, "PIECE_BYTES", piece_bytes)
    old, new = engine_of(groups), engine_of(groups)
    wanted = prompts(1, 40)
    fill(old, wanted)
    order = leaves(old)
    saved = old.cache.save(save_dir)
    assert saved.reason is None
    assert saved.num_left_out == 0
    assert saved.num_bytes == saved_file(save_dir).stat().st_size
    report = new.cache.restore(save_dir)
    assert (report.reason, report.num_dropped, report.num_left_out) == (None, 0, 0)
    assert report.num_nodes == saved.num_nodes
    assert report.num_positions == saved.num_positions == old.cache.tree.num_tokens  # type: ignore[union-attr]
    assert leaves(new) == order
    assert assert_sound(new) > 500
    for i, prompt in enumerate(wanted):
        for other in (prompt, prompt[: len(prompt) // 2], [*prompt[:-1], 5]):
            assert start_of(new, other, salt_of(i)) == start_of(old, other, salt_of(i))


@pytest.mark.parametrize("groups", KINDS)
def test_hits_after_a_restore_give_the_texts_of_cold_runs(groups: Groups, save_dir: Path) -> None:
    old, new = engine_of(groups), engine_of(groups)
    wanted = prompts(2, 12)
    fill(old, wanted)
    old.cache.save(save_dir)
    new.cache.restore(save_dir)
    requests = [
        new.add([*prompt, i], SamplingParams(seed=i, max_tokens=9), cache_salt=salt_of(i))
        for i, prompt in enumerate(wanted)
    ]
    run_all(new)
    model = new.executor
    assert isinstance(model, ToyModel)
    for request in requests:
        expected = expected_tokens(model, request, 0, new.config.max_model_len)
        assert request.generations[0].token_ids == expected
    assert sum(request.num_cached_tokens for request in requests) > 100


def test_what_finds_no_room_is_the_least_recent(save_dir: Path) -> None:
    old = engine_of(KINDS[0])
    wanted = [[i] * 30 for i in range(10)]
    fill(old, wanted)  # 8 blocks each
    old.cache.save(save_dir)
    new = engine_of(KINDS[0], blocks=34)
    report = new.cache.restore(save_dir)
    assert (report.num_nodes, report.num_left_out, report.num_dropped) == (4, 6, 0)
    assert report.reason == "The KV cache has no room for 6 of 10 saved prefixes."
    kept = [start_of(new, prompt, salt_of(i)) > 0 for i, prompt in enumerate(wanted)]
    assert kept == [False] * 6 + [True] * 4
    assert_sound(new)
    short = make_engine(
        ToyModel(), block_size=B, max_model_len=24, num_blocks=[100], prefix_caching=True
    )
    report = short.cache.restore(save_dir)
    assert (report.num_nodes, report.num_left_out) == (0, 10)
    assert report.reason == "The KV cache has no room for 10 of 10 saved prefixes."


def test_restoring_into_a_tree_that_has_something(save_dir: Path) -> None:
    old, new = engine_of(KINDS[1]), engine_of(KINDS[1])
    wanted = prompts(3, 10)
    fill(old, wanted)
    fill(new, wanted[:5])
    old.cache.save(save_dir)
    report = new.cache.restore(save_dir)
    assert 0 < report.num_positions < old.cache.tree.num_tokens  # type: ignore[union-attr]
    assert_sound(new)
    again = new.cache.restore(save_dir)
    assert again.num_positions == 0
    assert again.reason == "All saved prefixes are there already."
    assert_sound(new)


def test_the_limit_keeps_the_most_recent(save_dir: Path) -> None:
    old = engine_of(KINDS[0], blocks=500)
    fill(old, [[i] * 50 for i in range(30)])
    saved = old.cache.saved_in(save_dir)
    saved._limit = 16_000
    report = saved.save()
    assert report.reason is None
    assert 0 < report.num_nodes < 30 == report.num_nodes + report.num_left_out
    assert saved_file(save_dir).stat().st_size <= 16_000
    new = engine_of(KINDS[0], blocks=500)
    new.cache.restore(save_dir)
    assert [node.tokens for _, node in nodes(new)] == [
        node.tokens for _, node in nodes(old)[: report.num_nodes]
    ]


def test_old_files_go_when_the_directory_is_full(save_dir: Path) -> None:
    sizes = {}
    for i, groups in enumerate(KINDS):
        engine = engine_of(groups)
        fill(engine, prompts(i, 5))
        saved = engine.cache.saved_in(save_dir)
        saved._limit = 20_000
        assert saved.save().reason is None
        path = max(save_dir.glob("*.prefixes"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, (i, i))
        sizes[path] = path.stat().st_size
    first, *others = sizes
    assert sum(sizes.values()) > 20_000 > sum(sizes[path] for path in others)
    assert not first.exists()
    assert all(path.exists() for path in others)


# ---- row 19: while requests go on --------------------------------------------------------------


@pytest.mark.parametrize("groups", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_row_19_a_slow_save_while_blocks_change_hands(
    groups: Groups, seed: int, save_dir: Path
) -> None:
    """A save that goes on node by node while requests evict and preempt each other stores, of each
    block, what the tree says it is; that blocks were really given away meanwhile is counted."""
    rng = random.Random(seed)
    engine = engine_of(groups, blocks=64)
    fill(engine, prompts(seed, 8))
    model = engine.executor
    assert isinstance(model, ToyModel)
    before = {  # what a save that trusted ids would store at its end
        (node.tokens, block): model.read_block(0, block).tobytes()
        for _, node in nodes(engine) for block in node.blocks
    }  # fmt: skip
    save = engine.cache.saved_in(save_dir).begin_save()
    assert isinstance(save, PrefixSave)
    while save.collect(max_bytes=1):
        save.write()
        if len(engine.requests()) < 4:
            length = rng.randrange(20, 60)
            prompt = [rng.randrange(VOCAB) for _ in range(length)]
            params = SamplingParams(seed=seed, max_tokens=30)
            engine.add(prompt, params, cache_salt=salt_of(length))
        for _ in range(3):
            engine.step()
    report = save.finish()
    assert engine.cache.tree.stats.num_evicted_tokens > 50  # type: ignore[union-attr]
    if groups == KINDS[0]:
        changed = sum(model.read_block(0, b).tobytes() != old for (_, b), old in before.items())
        assert changed > 5, "no block changed hands, so nothing was tested"
    assert report.num_left_out > 0
    new = engine_of(groups)
    restored = new.cache.restore(save_dir)
    assert (restored.reason, restored.num_dropped) == (None, 0)
    assert restored.num_positions > 0
    assert_sound(new)


def test_a_tree_that_was_cleared_during_a_save(save_dir: Path) -> None:
    """Its nodes still hang together, but their blocks are gone."""
    engine = engine_of(KINDS[1])
    fill(engine, prompts(4, 12))
    save = engine.cache.saved_in(save_dir).begin_save()
    assert isinstance(save, PrefixSave)
    save.collect(max_bytes=1)
    engine.cache.clear()
    fill(engine, prompts(5, 12))
    assert not save.collect()
    report = save.finish()
    assert report.num_nodes == 1
    new = engine_of(KINDS[1])
    new.cache.restore(save_dir)
    assert_sound(new)


# ---- one writer, and killed writers --------------------------------------------------------------


def test_two_saves_at_once(save_dir: Path) -> None:
    engine = engine_of(KINDS[0])
    fill(engine, prompts(6, 3))
    first = engine.cache.saved_in(save_dir).begin_save()
    assert isinstance(first, PrefixSave)
    report = engine.cache.save(save_dir)
    assert report.reason == f"Another save into {save_dir} is running, so nothing was saved."
    first.abandon()
    assert list(save_dir.glob("*.prefixes")) == []
    assert engine.cache.save(save_dir).reason is None
    assert [path.name for path in save_dir.iterdir() if path.suffix == ".tmp"] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from saved_toy import KINDS, engine_of, fill, prompts
from headrace.engine.prefix import saved_file
where, directory = sys.argv[1], Path(sys.argv[2])
engine = engine_of(KINDS[1])
fill(engine, prompts(8, 9))
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if where == "data":
    save = engine.cache.saved_in(directory).begin_save()
    save.collect(max_bytes=1); save.write(); kill()
setattr(saved_file.os, where, kill)
engine.cache.save(directory)
"""


@pytest.mark.parametrize("where", ["data", "fsync", "replace"])
def test_a_killed_save_leaves_the_old_file(where: str, save_dir: Path) -> None:
    old = engine_of(KINDS[1])
    wanted = prompts(7, 9)
    fill(old, wanted)
    old.cache.save(save_dir)
    data = saved_file(save_dir).read_bytes()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            str(ROOT / part) for part in ("src", "tests/engine", "tests/engine/prefix")
        )
    }
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, where, str(save_dir)], env=environment, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert saved_file(save_dir).read_bytes() == data
    assert len(list(save_dir.glob(".*.tmp"))) == 1  # it really was in the middle
    new = engine_of(KINDS[1])
    assert new.cache.restore(save_dir).num_positions == old.cache.tree.num_tokens  # type: ignore[union-attr]
    fill(new, prompts(8, 9))
    assert new.cache.save(save_dir).reason is None
    assert list(save_dir.glob(".*.tmp")) == []
    assert saved_file(save_dir).read_bytes() != data


# ---- disks --------------------------------------------------------------------------------------


def test_a_full_disk_costs_a_sentence(save_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(KINDS[0])
    fill(engine, prompts(9, 5))
    engine.cache.save(save_dir)
    data = saved_file(save_dir).read_bytes()

    def full(self: SaveWriter) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write", "finish"):
        with monkeypatch.context() as patch:
            if name == "write":
                patch.setattr(SaveWriter, "write", full)
            else:
                patch.setattr(file_module.os, "fsync", full)
            report = engine.cache.save(save_dir)
        assert report.reason == (
            f"Prefixes cannot be saved into {save_dir} (No space left on device)."
        )
        assert saved_file(save_dir).read_bytes() == data
        assert list(save_dir.glob(".*.tmp")) == []
    assert engine.cache.save(save_dir).reason is None


def test_places_that_are_no_directory(save_dir: Path) -> None:
    engine = engine_of(KINDS[0])
    file = save_dir / "file"
    file.write_text("")
    assert engine.cache.restore(file).reason == f"{file} holds no saved prefixes."
    assert engine.cache.save(save_dir).reason == "There are no prefixes to save."
    fill(engine, prompts(9, 2))
    reason = engine.cache.save(file).reason
    assert reason is not None
    assert reason.startswith(f"Prefixes cannot be saved into {file} (")
    deep = save_dir / "a" / "b"
    assert engine.cache.save(deep).reason is None
    assert saved_file(deep).stat().st_mode & 0o077 == 0
    assert deep.stat().st_mode & 0o077 == 0


def test_nothing_is_saved_without_a_tree(save_dir: Path) -> None:
    engine = make_engine(ToyModel())
    with pytest.raises(UsageError, match="prefix cache is off"):
        engine.cache.save(save_dir)
