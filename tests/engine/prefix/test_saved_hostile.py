"""A file of saved prefixes may hold anything: never a crash, never a wrong hit, bounded memory.

Damage is done to files of a toy engine, whose blocks hold token ids: whatever comes back, every
block must hold the tokens that the tree says (`assert_sound`). Half of the damage is signed anew
with right checksums, as if by someone who knows the format.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from saved_toy import KINDS, Groups, assert_sound, engine_of, fill, nodes, prompts, saved_file

from headrace.engine.core import Engine
from headrace.engine.prefix.saved_index import MAX_INDEX_BYTES, Index, IndexBuilder
from headrace.engine.prefix.saved_read import RestoreReport
from headrace.engine.prefix.stamp import ModelIdentity, Stamp
from headrace.native import core

PREFIX = struct.Struct("<8s7Q")
Damage = Callable[[bytearray, random.Random], None]


@cache
def sound_file(kind: int) -> tuple[bytes, str]:
    """A whole file and its name."""
    engine = engine_of(KINDS[kind])
    fill(engine, prompts(11, 14))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        engine.cache.save(Path(name))
        path = saved_file(Path(name))
        return path.read_bytes(), path.name


def checksum(data: bytes | bytearray) -> int:
    return int(core().checksum(np.frombuffer(bytes(data), np.uint8)))


def signed(data: bytearray) -> bytearray:
    """The file with right checksums and sizes."""
    magic, stamp_bytes, index_at, *_ = PREFIX.unpack_from(data)
    index = data[index_at:]
    stamp = data[PREFIX.size : PREFIX.size + stamp_bytes]
    head = PREFIX.pack(magic, stamp_bytes, index_at, len(index), len(data), checksum(stamp),
                       checksum(index), 0)[:-8]  # fmt: skip
    data[: PREFIX.size] = head + struct.pack("<Q", checksum(head))
    return data


def stamped(data: bytearray, raw: bytes) -> bytearray:
    """The file with another stamp, signed."""
    length = PREFIX.unpack_from(data)[1]
    data[PREFIX.size : PREFIX.size + max(length, len(raw))] = raw.ljust(length, b"\0")
    data[8:16] = struct.pack("<Q", len(raw))
    return signed(data)


def restamped(whole: bytes, **change: object) -> tuple[bytearray, Stamp]:
    """The file with some of its stamp changed, and the new stamp."""
    length = PREFIX.unpack_from(whole)[1]
    stamp = Stamp.from_json(whole[PREFIX.size : PREFIX.size + length])
    other = replace(stamp, **change)  # type: ignore[arg-type]
    assert other.key != stamp.key
    return stamped(bytearray(whole), other.to_json()), other


def index_at(data: bytes | bytearray) -> int:
    return int(PREFIX.unpack_from(data)[2])


def restore(
    groups: Groups, data: bytes | bytearray, directory: Path, name: str
) -> tuple[Engine, RestoreReport]:
    (directory / name).write_bytes(data)
    engine = engine_of(groups)
    report = engine.cache.restore(directory)
    if report.num_nodes or nodes(engine):
        assert_sound(engine)
    else:
        engine.check_invariants()
        assert report.reason is not None, "nothing came back, and nobody says why"
    if report.num_dropped:
        assert report.reason is not None
        assert "damaged" in report.reason
    return engine, report


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def grow(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.randrange(1, 5000))


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 30))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_block(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(4096, index_at(data))] ^= 1 << rng.randrange(8)


def swap_blocks(data: bytearray, rng: random.Random) -> None:
    size = 32
    a, b = (4096 + size * rng.randrange((index_at(data) - 4096) // size) for _ in range(2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


WORDS = (0, 1, 2, 3, 4, 60, 61, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def edit_index(data: bytearray, rng: random.Random) -> None:
    at = index_at(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = at + 4 * rng.randrange((len(data) - at) // 4)
        word = rng.choice((*WORDS, rng.randrange(1 << 32), data[place] + 1, data[place] - 1))
        data[place : place + 4] = struct.pack("<I", word & 0xFFFFFFFF)
    signed(data)


def swap_in_index(data: bytearray, rng: random.Random) -> None:
    """Numbers that are right, in wrong places."""
    at = index_at(data)
    size = rng.choice((4, 8, 44))
    a, b = (at + rng.randrange(len(data) - at - size) // 4 * 4 for _ in range(2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    signed(data)


def edit_prefix(data: bytearray, rng: random.Random) -> None:
    place = 8 * rng.randrange(1, 7)
    value = rng.choice((0, 1, len(data), len(data) + 1, 1 << 32, 1 << 63, (1 << 64) - 1))
    data[place : place + 8] = struct.pack("<Q", value)
    head = data[: PREFIX.size - 8]
    data[PREFIX.size - 8 : PREFIX.size] = struct.pack("<Q", checksum(head))


def cut_index(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(index_at(data), len(data)) :]
    signed(data)


def noise(data: bytearray, rng: random.Random) -> None:
    at = index_at(data)
    data[at:] = rng.randbytes(rng.randrange(3 * (len(data) - at)))
    signed(data)


@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize(
    "damage",
    [cut, grow, flip, flip_block, swap_blocks, edit_index, swap_in_index, edit_prefix, cut_index,
     noise],
)  # fmt: skip
def test_damage(kind: int, damage: Damage, save_dir: Path) -> None:
    whole, name = sound_file(kind)
    rng = random.Random(kind)
    total = 0
    for _ in range(30):
        data = bytearray(whole)
        damage(data, rng)
        _, report = restore(KINDS[kind], data, save_dir, name)
        total += report.num_positions
        if data == whole:
            assert report.reason is None
    if damage in (flip_block, swap_blocks, edit_index):
        assert total > 0, "everything was dropped every time: seals are too strict to test"


def test_the_undamaged_file_comes_back(save_dir: Path) -> None:
    for kind, groups in enumerate(KINDS):
        whole, name = sound_file(kind)
        _, report = restore(groups, whole, save_dir, name)
        assert report.reason is None
        assert signed(bytearray(whole)) == whole


def test_one_damaged_block_takes_its_descendants_along(save_dir: Path) -> None:
    """Nodes beside it stay; the report counts what went."""
    whole, name = sound_file(0)
    data = bytearray(whole)
    data[4096] ^= 1  # of the first block: the start of the most recently used path
    sound, before = restore(KINDS[0], whole, save_dir, name)
    engine, report = restore(KINDS[0], data, save_dir, name)
    assert 0 < report.num_dropped < before.num_nodes
    assert report.num_nodes == before.num_nodes - report.num_dropped
    assert report.reason == (
        f"{report.num_dropped} of {before.num_nodes} saved prefixes are damaged."
    )
    first = nodes(sound)[0][1]
    top = first.path()[0].tokens[:16]
    assert all(node.path()[0].tokens[:16] != top or salt != nodes(sound)[0][0]
               for salt, node in nodes(engine))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": "other", "model_name": "its name"}, "another model (its name)"),
        ({"tokenizer": "other"}, "another tokenizer (same size)"),
        ({"num_ids": 62}, "another tokenizer (62 tokens, here 61)"),
        ({"numerics": "headrace-2"}, "other arithmetic (headrace-2, here toy)"),
        ({"kv_format": "bf16"}, "another KV number format (bf16, here f32)"),
        ({"block_size": 16}, "another block size (16, here 4)"),
        ({"groups": ()}, "other KV groups"),
    ],
)
def test_another_stamp_is_refused_with_its_difference(
    change: dict[str, object], said: str, save_dir: Path
) -> None:
    """Under its own name, where it is only looked at, and under ours, where it must not be used."""
    whole, name = sound_file(0)
    data, other = restamped(whole, **change)
    for file_name in (f"{other.key}.prefixes", name):
        engine, report = restore(KINDS[0], data, save_dir, file_name)
        assert nodes(engine) == []
        assert report == RestoreReport(
            reason=f"The prefixes saved in {save_dir} were computed with {said}, so none of them "
            "is used."
        )


def test_blocks_of_another_model_under_our_stamp(save_dir: Path) -> None:
    """A stamp that was exchanged: no block is of it."""
    whole, _ = sound_file(1)
    data, stamp = restamped(whole, weights="ours")
    (save_dir / f"{stamp.key}.prefixes").write_bytes(data)
    engine = engine_of(KINDS[1])
    engine.cache._identity = lambda: ModelIdentity("toy", "ours", "letters")
    report = engine.cache.restore(save_dir)
    assert (report.num_nodes, report.num_left_out, nodes(engine)) == (0, 0, [])
    assert report.reason == (
        f"{report.num_dropped} of {report.num_dropped} saved prefixes are damaged."
    )


def test_stamps_that_are_none(save_dir: Path) -> None:
    whole, name = sound_file(0)
    length = PREFIX.unpack_from(whole)[1]
    rng = random.Random(5)
    stamp = whole[PREFIX.size : PREFIX.size + length]
    texts = [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[" * 4000,
        b'{"groups":[1]}',
        b'{"groups":[{"layers":1}]}',
        stamp.replace(b'"block_size": 4', b'"block_size": "4"'),
        stamp.replace(b'"letters"', b"[[]]"),
    ]
    texts += [rng.randbytes(100) for _ in range(20)]
    for text in texts:
        _, report = restore(KINDS[0], stamped(bytearray(whole), text), save_dir, name)
        assert "damaged" in str(report.reason)


def test_places_that_hold_something_else(save_dir: Path) -> None:
    name = sound_file(0)[1]
    engine = engine_of(KINDS[0])
    os.mkfifo(save_dir / name)  # nobody ever writes to it
    assert "damaged (it is not a file)" in str(engine.cache.restore(save_dir).reason)
    os.unlink(save_dir / name)
    (save_dir / name).mkdir()
    assert "damaged (it is not a file)" in str(engine.cache.restore(save_dir).reason)
    (save_dir / name).rmdir()
    (save_dir / name).symlink_to(save_dir / "nowhere")
    assert engine.cache.restore(save_dir).reason == f"{save_dir} holds no saved prefixes."


# ---- memory ------------------------------------------------------------------------------------


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_sizes_that_a_file_claims_cost_no_memory(save_dir: Path) -> None:
    whole, name = sound_file(0)
    path = save_dir / name
    for index_bytes in (MAX_INDEX_BYTES + 1, 1 << 40):
        at = index_at(whole)
        head = bytearray(whole[:at])
        head[16:40] = struct.pack("<3Q", at, index_bytes, at + index_bytes)
        head[56:64] = struct.pack("<Q", checksum(head[:56]))
        path.write_bytes(head)
        os.truncate(path, at + index_bytes)  # no byte of it on disk
        engine = engine_of(KINDS[0])
        reports: list[RestoreReport] = []
        peak = peak_of(lambda: reports.append(engine.cache.restore(save_dir)))  # noqa: B023
        assert "too large" in str(reports[0].reason)
        assert peak < 1 << 20


def test_an_index_of_many_nodes_takes_a_few_times_its_size() -> None:
    """A few bytes of Python's for each of the index, not an object for each node."""
    data = bytearray(IndexBuilder(1).to_bytes())
    count = 50_000
    rows = np.zeros(count, [("parent", "<i4"), ("salt", "<u4"), ("tokens", "<u4"),
                            ("entry_from", "<i8"), ("span", "<u4", 2)])  # fmt: skip
    rows["parent"], rows["tokens"], rows["entry_from"] = -1, 1, -1
    counts = struct.pack("<6Q", 1, 0, count, count, 0, 0)
    data = bytearray(counts + bytes(4) + rows.tobytes() + bytes(4 * count))
    indexes: list[Index] = []
    peak = peak_of(lambda: indexes.append(Index(bytes(data), 1, 4, 61)))
    assert indexes[0].num_nodes == count
    assert peak < 8 * len(data)
