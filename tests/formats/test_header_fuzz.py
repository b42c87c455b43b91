"""Fuzzing of file headers: only ModelFileError comes out, and memory stays in bounds.

Cases are made from a fixed seed: valid headers with flipped bits, cut tails, absurd numbers, moved
and foreign pieces, and headers written field by field with a hostile hand. Whatever opens is then
read to the last value, because strings and tensors are decoded only on access.
"""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize
from synthetic_gguf import floats, random_blocks, write_gguf

from headrace.errors import ModelFileError
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.gguf_header import read_header
from headrace.formats.gguf_values import StringArray
from headrace.formats.safetensors_header import read_safetensors_header

MAX_CASE_BYTES = 64 << 10
MAX_PEAK_BYTES = 64 << 20
GGUF_MUTANTS = 14_000
GGUF_HOSTILE = 7_000
SAFETENSORS_CASES = 5_000

ABSURD = [
    0, 1, 2, 7, 8, 9, 12, 13, 31, 32, 255, 65535, 1 << 16, 1 << 20, 1 << 24, 1 << 31, (1 << 32) - 1,
    1 << 32, 1 << 40, 1 << 60, (1 << 61) + 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 8,
    (1 << 64) - 1,
]  # fmt: skip


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four hostile edits of a valid file."""
    case = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(case)) if case else 0
        kind = rng.randrange(7)
        if kind == 0 and case:
            case[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del case[at:]
        elif kind == 2:
            case[at : at + 8] = struct.pack("<Q", rng.choice(ABSURD))
        elif kind == 3:
            case[at : at + 4] = struct.pack("<I", rng.choice(ABSURD) & 0xFFFFFFFF)
        elif kind == 4:
            del case[at : at + rng.randrange(1, 40)]
        elif kind == 5:
            piece = rng.choice(others)
            start = rng.randrange(len(piece))
            case[at:at] = piece[start : start + rng.randrange(1, 200)]
        else:
            case[at:at] = case[at : at + rng.randrange(1, 200)]
    return bytes(case[:MAX_CASE_BYTES])


def hostile_gguf(rng: random.Random) -> bytes:
    """A header written field by field, each field right most of the time."""

    def number(right: int, layout: str = "<Q") -> bytes:
        value = right if rng.random() < 0.97 else rng.choice(ABSURD)
        return struct.pack(layout, value & ((1 << 8 * struct.calcsize(layout)) - 1))

    def text(size: int) -> bytes:
        return number(size) + rng.randbytes(size)

    def array(depth: int) -> bytes:
        kind = rng.choice((0, 4, 5, 6, 7, 8, 8, 9, 10, 12, rng.randrange(16)))
        count = rng.choice((0, 1, 3, 50, 3000))
        if kind == 9 and depth < 40:
            return struct.pack("<I", 9) + number(1) + array(depth + 1)
        items = b"\0" * 8 * count if kind != 8 else b"".join(text(2) for _ in range(count))
        return struct.pack("<I", kind) + number(count) + items

    def value(kind: int) -> bytes:
        if kind == 8:
            return text(rng.choice((0, 1, 30)))
        return array(0) if kind == 9 else b"\1" * {0: 1, 1: 1, 2: 2, 3: 2, 7: 1}.get(kind, 8)

    num_keys, num_tensors = rng.choice((0, 1, 2, 5)), rng.choice((0, 1, 3))
    parts = [b"GGUF", number(3, "<I"), number(num_tensors), number(num_keys)]
    for i in range(num_keys):
        kind = rng.randrange(13)
        name = rng.choice((b"general.alignment", b"general.architecture", b"key%d" % i))
        parts += [number(len(name)), name, number(kind, "<I"), value(kind)]
    for i in range(num_tensors):
        axes = rng.choice((0, 1, 2, 2, 3, 4, 5))
        sizes = b"".join(number(rng.choice((1, 8, 32, 256))) for _ in range(axes))
        kind = number(rng.choice((0, 1, 2, 8, 12, 30, 16)), "<I")
        parts += [number(2), b"t%d" % i, number(axes, "<I"), sizes, kind, number(4096 * i)]
    tail = rng.choice((0, 31, 4096, 16384))
    return b"".join([*parts, b"\0" * tail])[:MAX_CASE_BYTES]


def read_all_gguf(data: bytes) -> None:
    """Opens a header and touches every value it offers."""
    header = read_header(memoryview(data), "fuzz")
    for value in header.metadata.values():
        if isinstance(value, StringArray):
            assert len(list(value)) == len(list(value.raw_items())) == len(value)
        elif isinstance(value, np.ndarray):
            value.tobytes()
    for tensor in header.tensors.values():
        try:
            host = tensor.host()
        except ModelFileError:
            continue
        assert host.data.nbytes == host.num_bytes <= len(data)


def run(cases: Iterator[bytes], read: Callable[[bytes], object]) -> Counter[str]:
    """Reads every case; returns how many were accepted and refused, by kind of refusal."""
    outcomes: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for case in cases:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                read(case)
                outcomes["accepted"] += 1
            except ModelFileError as error:
                # The sentence without its figures and names: the kind of refusal.
                words = [word for word in str(error).split() if word.isalpha()]
                outcomes[" ".join(words)] += 1
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < MAX_PEAK_BYTES, f"{peak} bytes for a header of {len(case)}"
    finally:
        tracemalloc.stop()
    return outcomes


@pytest.fixture
def gguf_seeds(tmp_path) -> list[bytes]:
    """Valid files: tiny, with every kind of value, with a vocabulary, with many tensors."""
    small = {"general.name": "m", "flag": True, "n": 3, "x": 0.5}
    rich = small | {
        "tokenizer.ggml.tokens": [f"token{i}" for i in range(60)],
        "tokenizer.ggml.scores": [float(i) for i in range(60)],
        "tokenizer.ggml.token_type": list(range(60)),
        "bools": [True, False],
    }
    large = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(4000)]}
    blocks = {"q": random_blocks("Q8_0", 2, 64), "k": random_blocks("Q6_K", 1, 256)}
    files = [
        write_gguf(tmp_path / "a.gguf", {"w": floats(2, 8)}, small),
        write_gguf(tmp_path / "b.gguf", blocks, rich, formats={"q": "Q8_0", "k": "Q6_K"}),
        write_gguf(tmp_path / "c.gguf", {f"w{i}": floats(8) for i in range(12)}, {}, alignment=8),
        write_gguf(tmp_path / "d.gguf", {}, large),
    ]
    seeds = [file[0].read_bytes() for file in files]
    assert all(len(seed) <= MAX_CASE_BYTES for seed in seeds)
    return seeds


def test_mutated_gguf_headers(gguf_seeds):
    rng = random.Random(20)
    weights = (8, 8, 8, 1)
    cases = (
        mutate(rng, rng.choices(gguf_seeds, weights)[0], gguf_seeds) for _ in range(GGUF_MUTANTS)
    )
    outcomes = run(cases, read_all_gguf)
    assert outcomes.total() == GGUF_MUTANTS
    assert outcomes["accepted"] > 200
    assert len(outcomes) > 20


def test_hostile_gguf_headers():
    rng = random.Random(21)
    outcomes = run((hostile_gguf(rng) for _ in range(GGUF_HOSTILE)), read_all_gguf)
    assert outcomes.total() == GGUF_HOSTILE
    assert outcomes["accepted"] > 200
    assert len(outcomes) > 20


def test_mutated_files_on_disk(gguf_seeds, tmp_path):
    """The same through the whole path: a file, mapped, behind open_checkpoint."""
    rng = random.Random(22)
    path = tmp_path / "case.gguf"

    def read(case: bytes) -> None:
        path.write_bytes(case)
        checkpoint = open_checkpoint(path)
        assert checkpoint.kind == "gguf"

    cases = (mutate(rng, rng.choice(gguf_seeds[:3]), gguf_seeds) for _ in range(400))
    assert run(cases, read)["accepted"] > 5


def hostile_safetensors(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A mutated file, or a table with one wrong figure and a right length field."""
    if rng.random() < 0.5:
        return mutate(rng, rng.choice(seeds), seeds)
    table: dict[str, object] = {}
    at = 0
    for i in range(rng.randrange(4)):
        rows, columns = rng.randrange(4), rng.randrange(1, 5)
        begin, at = at, at + 4 * rows * columns
        table[f"t{i}"] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, at]}
    if table and rng.random() < 0.7:
        line = table[rng.choice(list(table))]
        odd = rng.choice([*ABSURD, -1, 1.5, True, None, "x", [], [[]], {}, 10**30])
        key = rng.choice(["dtype", "shape", "data_offsets", "extra"])
        assert isinstance(line, dict)
        line[key] = [odd, odd] if rng.random() < 0.5 else odd
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * (at + rng.choice((0, 0, 0, 4)))


def test_safetensors_headers():
    """Also against the safetensors package: both accept and refuse the same files."""
    rng = random.Random(23)
    table = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [32, 40]},
        "c": {"dtype": "I64", "shape": [], "data_offsets": [40, 48]},
    }
    header = json.dumps(table).encode()
    seeds = [struct.pack("<Q", len(header)) + header + bytes(range(48))]

    def oracle_accepts(case: bytes) -> bool:
        try:
            deserialize(case)
        except SafetensorError:
            return False
        return True

    def read(case: bytes) -> None:
        try:
            tensors = read_safetensors_header(memoryview(case), "fuzz")
        except ModelFileError:
            assert not oracle_accepts(case), case
            raise
        assert oracle_accepts(case), case
        for tensor in tensors.values():
            try:
                tensor.host()
            except ModelFileError:
                continue

    cases = (hostile_safetensors(rng, seeds) for _ in range(SAFETENSORS_CASES))
    outcomes = run(cases, read)
    assert outcomes["accepted"] > 200
    assert len(outcomes) > 12
