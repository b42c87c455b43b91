"""Options → EngineConfig: auto values, limits, and one clear sentence for everything wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy import FULL, window_group

from headrace.engine.config import (
    Allocator,
    EngineConfig,
    EngineOptions,
    Machine,
    _cgroup_room_bytes,
    parse_bytes,
    resolve,
)
from headrace.engine.scheduler import Batching
from headrace.errors import CapacityError, UsageError
from headrace.ops.kv import KVFormat

MACHINE = Machine(free_bytes=1 << 30, num_cpus=3)


def resolved(max_context: int = 32768, machine: Machine = MACHINE, **options: Any) -> EngineConfig:
    return resolve(
        EngineOptions.from_dict(options), (FULL, window_group(512)), max_context, machine
    )


def test_auto() -> None:
    config = resolved()
    assert config.max_model_len == 8192
    assert config.max_num_seqs == 64
    assert config.max_num_batched_tokens == config.max_prefill_tokens == 512
    assert config.kv_format is KVFormat.BF16
    assert config.kv_allocator is Allocator.PAGED
    assert config.batching is Batching.CONTINUOUS
    assert config.num_threads == 3
    assert config.block_size == 16
    # 64 full contexts: 512 blocks, and ceil((511 + 512) / 16) + 1 = 65 for the window
    assert config.pools.num_blocks == (64 * 512, 64 * 65)
    assert "context 8192 tokens" in config.describe()


def test_a_short_model_and_an_explicit_length() -> None:
    assert resolved(2048).max_model_len == 2048
    assert resolved(32768, max_model_len=32768).max_model_len == 32768
    with pytest.raises(UsageError, match=r"max_model_len = 32769 .* context of 32768"):
        resolved(32768, max_model_len=32769)


def test_the_budget_is_kept_and_half_of_free_memory_by_default() -> None:
    wanted = resolved().pools.total_bytes
    little = resolved(machine=Machine(wanted, 1)).pools
    assert wanted * 0.49 < little.total_bytes <= wanted // 2
    given = resolved(kv_cache_memory="1MiB").pools
    assert given.total_bytes <= 1 << 20
    assert resolved(machine=Machine(None, 1)).pools.total_bytes == wanted
    with pytest.raises(CapacityError, match="kv_cache_memory"):
        resolved(kv_cache_memory=100)


def test_weights_are_taken_off_the_free_memory() -> None:
    options = EngineOptions()
    free = Machine(4 << 20, 1)
    without = resolve(options, (FULL,), 4096, free).pools.total_bytes
    beside = resolve(options, (FULL,), 4096, free, weight_bytes=2 << 20).pools.total_bytes
    assert beside == without // 2


def test_no_cache_needs_whole_contexts_in_a_step() -> None:
    config = resolved(kv_allocator="none", max_model_len=4096)
    assert config.max_num_batched_tokens == 4096
    assert config.pools.num_blocks == (64 * 256, 64 * 256)


def test_many_sequences_raise_the_token_budget() -> None:
    assert resolved(max_num_seqs=1000).max_num_batched_tokens == 1000
    with pytest.raises(UsageError, match="max_num_batched_tokens = 8 is below max_num_seqs = 16"):
        resolved(max_num_seqs=16, max_num_batched_tokens=8)


def test_a_whole_context_in_one_step_is_at_most_what_the_core_takes() -> None:
    with pytest.raises(UsageError, match=r'kv_allocator = "none" computes .* 1,048,576 tokens'):
        resolved(max_context=1 << 22, kv_allocator="none", max_model_len=(1 << 20) + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 3}, r"'max_num_seq'\. Did you mean max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"max_num_seqs": True}, "max_num_seqs = True"),
        ({"max_model_len": 1}, "max_model_len = 1"),
        ({"max_model_len": 2.5}, r"max_model_len = 2\.5"),
        ({"block_size": 24}, "block_size = 24 must be a multiple of 16"),
        ({"kv_cache_dtype": "fp8"}, 'kv_cache_dtype = \'fp8\' is unknown: "f32", "bf16", "f16"'),
        ({"kv_allocator": "slab"}, "kv_allocator = 'slab'"),
        ({"batching": "dynamic"}, "batching = 'dynamic'"),
        ({"num_threads": 0}, "num_threads = 0"),
        ({"num_threads": 1025}, "num_threads = 1025 is out of range: an integer 1 … 1024"),
        ({"max_num_batched_tokens": 2**20 + 1}, "max_num_batched_tokens = 1048577 is out of range"),
        ({"seed": -1}, "seed = -1"),
        ({"max_queue": 0}, "max_queue = 0"),
        ({"max_prefill_tokens": 513}, "max_prefill_tokens = 513"),
        ({"kv_cache_memory": "2 gigs"}, "'2 gigs' is not a size"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(**options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (1048576, 1 << 20),
        ("4096", 4096),
        ("4096B", 4096),
        ("1K", 1024),
        ("1.5 MiB", 3 << 19),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("2gb", 2 * 10**9),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: int | str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "-1", 0, -5, "1e9", "GiB", "9" * 30, True, None, 1.5, "1 2"])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(UsageError, match="kv_cache_memory"):
        parse_bytes(text)


def test_the_debug_variable() -> None:
    assert Machine.probe({}).debug_invariants is False
    assert Machine.probe({"HEADRACE_DEBUG_INVARIANTS": "1"}).debug_invariants is True
    with pytest.raises(UsageError, match="HEADRACE_DEBUG_INVARIANTS must be 0 or 1, not 'yes'"):
        Machine.probe({"HEADRACE_DEBUG_INVARIANTS": "yes"})
    assert resolved(machine=Machine(None, 1, debug_invariants=True)).debug_invariants is True


def test_a_control_group_limits_the_free_memory(tmp_path: Path) -> None:
    def room(limit: str) -> int | None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("700\n")
        (tmp_path / "memory.stat").write_text("anon 400\nfile 300\n")
        return _cgroup_room_bytes(str(tmp_path))

    assert room("1000\n") == 600
    assert room("100\n") == 0
    assert room("max\n") is None
    assert _cgroup_room_bytes(str(tmp_path / "none")) is None
