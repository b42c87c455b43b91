"""Real models on the native interpreter: equal bits on every level and thread count, no torch, and
no more memory than promised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.sources import resolve
from headrace.models.load import LoadedModel, load
from headrace.native import _core
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from small_program import batch_of, streams

pytestmark = pytest.mark.models

MODELS = ("smollm2-135m", "gemma3-270m")
B = 16


def opened(name: str) -> LoadedModel:
    return load(open_checkpoint(resolve(name)))


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_forward_has_equal_bits_on_all_levels_and_threads(name: str) -> None:
    """600 tokens: five tiles, two segments, and gemma's window of 512 left behind."""
    model = opened(name)
    found = set()
    for isa, threads, chunk in (
        ("avx2", 1, 600),
        ("avx2", 2, 256),
        *((isa, 2, 199) for isa in _core.available_isas()[1:]),
    ):
        native = NativeModel(model, isa=isa, num_threads=threads, max_tokens=600)
        (stream,), blocks = streams((600,), len(model.kv_groups), B, 40_000)
        native.allocate_kv([blocks] * len(model.kv_groups), B, KVFormat.BF16)
        last = b""
        while stream.left:
            batch = batch_of([(stream, min(chunk, stream.left))], B, logits="last")
            logits = native.run(batch)
            assert np.isfinite(logits).all()
            last = logits.tobytes()
        found.add(last)
    assert len(found) == 1


_MEMORY = """
import sys
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from small_program import batch_of, streams

def anonymous() -> int:  # bytes; VmHWM would count the mapped file too
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError

model = load(open_checkpoint(__import__("pathlib").Path(sys.argv[1])))
native = NativeModel(model, num_threads=2)
groups = model.kv_groups
parts, blocks = streams((540,), len(groups), 16, 40_000)
native.allocate_kv([blocks] * len(groups), 16, KVFormat.BF16)
native.run(batch_of([(parts[0], 512)], 16, logits="last"))
for _ in range(28):
    batch = batch_of([(parts[0], 1)], 16, logits="last", prompt=True)
    native.run(batch)
    list(native.prompt_logits(batch))
kv = sum(g.bytes_per_position(KVFormat.BF16) for g in groups) * blocks * 16
assert "torch" not in sys.modules
print(anonymous(), native.weights.num_bytes, kv)
"""


@pytest.mark.parametrize("name", MODELS)
def test_anonymous_memory_is_packed_weights_kv_and_little_more(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(resolve(name))],
        env={"PYTHONPATH": "src:tests", "HOME": str(Path.home())},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    anonymous, packed, kv = map(int, done.stdout.split())
    print(
        f"{name}: anonymous {anonymous / 1e6:.0f} MB, packed {packed / 1e6:.0f}, KV {kv / 1e6:.0f}"
    )
    assert anonymous <= 1.1 * packed + kv + 150e6
