"""The kernels' bits, held still: SHA-256 of each op's output for fixed inputs.

A change of speed must not change one. A wanted change of arithmetic is a new numerics_id
(docs/numerics.md): run `PYTHONPATH=src python tests/native/test_kernel_hashes.py` to write the file
anew, and say why in the commit. The values were produced at the commit that introduced them, when
every kernel had passed its tests against float64 and the emulation; inputs come from integer
arithmetic, so they depend on no library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from paged import Paged, Sequence, Shape

from headrace.native import _core
from headrace.ops.kv import KVFormat
from headrace.quant.formats import FORMATS

F32 = npt.NDArray[np.float32]
ops = _core.ops
GOLDEN = Path(__file__).parents[1] / "golden" / "kernel_hashes.json"


def words(count: int, seed: int) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea & Flood 2014) of seed·2³² + i: the same on every machine."""
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def numbers(shape: tuple[int, ...], seed: int, size: float) -> F32:
    """Multiples of size · 2⁻²³ in (−size, size); exact for a power of two."""
    integers = (words(int(np.prod(shape)), seed) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return (integers * (size * 2.0**-23)).astype(np.float32).reshape(shape)


def table_of(name: str) -> tuple[npt.NDArray[np.uint8], int]:
    """Blocks of arbitrary bytes, but none that holds a NaN: exponents stay below all ones."""
    fmt = FORMATS[name]
    columns = 512 if fmt.block_size == 256 else 96
    blocks = 8 * columns // fmt.block_size
    data = words(blocks * fmt.block_bytes, 1).astype(np.uint8).reshape(blocks, fmt.block_bytes)
    tops = {
        "F32": [3],
        "Q8_0": [1],
        "Q4_0": [1],
        "Q5_0": [1],
        "Q6_K": [209],
        "F16": [1],
        "BF16": [1],
        "Q2_K": [81, 83],
        "Q3_K": [109],
        "IQ4_NL": [1],
    }
    data[:, tops.get(name, [1, 3])] &= 0xBF
    return np.ascontiguousarray(data.reshape(8, -1)), columns


def elementwise_cases() -> dict[str, Callable[..., F32]]:
    x, y = numbers((7, 333), 2, 8), numbers((7, 333), 3, 4)
    w, b = numbers((333,), 4, 2), numbers((333,), 5, 2)
    cos, sin = numbers((64, 16), 6, 1), numbers((64, 16), 7, 1)
    at = np.array([0, 3, 63, 31, 7, 8, 9], np.int32)
    heads = numbers((7, 3 * 40), 8, 4)
    cases: dict[str, Callable[..., F32]] = {
        "rms_norm": lambda **how: ops.rms_norm(x, w, 1e-5, 1, **how),
        "rms_norm/groups": lambda **how: ops.rms_norm(x, w[:111], 1e-6, 3, **how),
        "layer_norm": lambda **how: ops.layer_norm(x, w, b, 1e-5, **how),
        "rope/half": lambda **how: ops.rope(heads, at, 3, cos, sin, False, **how),
        "rope/interleaved": lambda **how: ops.rope(heads, at, 3, cos, sin, True, **how),
        "gated/silu": lambda **how: ops.gated(x, y, 0, **how),
        "gated/gelu": lambda **how: ops.gated(x, y, 1, **how),
        "gelu": lambda **how: ops.gelu(x, **how),
        "soft_cap": lambda **how: ops.soft_cap(x, 5.0, **how),
        "scale": lambda **how: ops.scale(x, 0.3, **how),
        "add": lambda **how: ops.add(x, y, **how),
        "exp": lambda **how: ops.exp(x * np.float32(10), **how),
    }
    for i, name in enumerate(FORMATS):
        table, columns = table_of(name)
        cases[f"embed/{name}"] = lambda table=table, i=i, columns=columns, **how: ops.embed(
            table, i, columns, np.arange(8, dtype=np.int32), **how
        )
    return cases


ATTENTION = {
    "gqa-64": (Shape(6, 2, 64), 1100),
    "mha-24-cap": (Shape(2, 2, 24, soft_cap=4.0), 300),
    "mqa-128": (Shape(4, 1, 128), 600),
    "mqa-256-window": (Shape(4, 1, 256, window=300), 700),
    "gqa-10-window": (Shape(7, 1, 10, v_dim=6, window=77), 400),
}


def attention_case(name: str, fmt: KVFormat) -> Callable[..., F32]:
    """A long chunk, then a short one, then single tokens."""
    shape, length = ATTENTION[name]
    shape = Shape(
        shape.heads, shape.kv_heads, shape.dim, shape.v_dim, fmt, shape.window, shape.soft_cap
    )
    s = Sequence(
        numbers((length, shape.heads * shape.dim), 9, 4),
        numbers((length, shape.kv_heads * shape.dim), 10, 2),
        numbers((length, shape.kv_heads * shape.v_dim), 11, 2),
    )

    def run(**how: object) -> F32:
        paged = Paged(shape, [s])
        edges = [0, length - 9, length - 2, length - 1, length]
        parts = [paged.step([span], **how)[0] for span in pairwise(edges)]  # type: ignore[arg-type]
        return np.concatenate(parts)

    return run


def matmul_case(number: int, name: str) -> Callable[..., F32]:
    table, columns = table_of(name)
    x, bias = numbers((9, columns), 12, 4), numbers((8,), 13, 2)

    def run(isa: str | None = None, threads: int = 1) -> F32:
        return _core.matmul(_core.pack(number, table, 8, columns), x, bias, isa, threads)

    return run


def cases() -> dict[str, Callable[..., F32]]:
    every = elementwise_cases()
    every |= {f"matmul/{name}": matmul_case(i, name) for i, name in enumerate(FORMATS)}
    for name in ATTENTION:
        for fmt in KVFormat:
            every[f"attend/{fmt.value}/{name}"] = attention_case(name, fmt)
    return every


def digest(x: F32) -> str:
    assert np.isfinite(x).all()
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


CASES = cases()


@pytest.mark.parametrize("isa", _core.available_isas())
@pytest.mark.parametrize("name", list(CASES))
def test_bits_are_those_recorded(name: str, isa: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert set(golden) == set(CASES)
    assert digest(CASES[name](isa=isa, threads=2)) == golden[name]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({n: digest(call()) for n, call in CASES.items()}, indent=1) + "\n")
