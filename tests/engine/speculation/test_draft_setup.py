"""From two models to one engine: one KV budget, one set of workers, refusals before any work."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.config import EngineConfig, EngineOptions, Machine, resolve
from headrace.engine.core import Engine
from headrace.engine.model import build_engine, open_draft, open_model
from headrace.engine.speculation.choice import Speculative
from headrace.engine.speculation.draft_model import DraftModel
from headrace.errors import CapacityError, UsageError
from headrace.ops.kv import KVGroupSpec

BIG = (KVGroupSpec("full", tuple(range(8)), 2, 64, 64),)
SMALL = (
    KVGroupSpec("full", (0,), 1, 64, 64),
    KVGroupSpec("window", (1, 2, 3), 1, 64, 64, window=64),
)


def resolved(draft: tuple[KVGroupSpec, ...] | None, **options: Any) -> EngineConfig:
    machine = Machine(free_bytes=2**30, num_cpus=2)
    return resolve(EngineOptions(**options), BIG, 1024, machine, draft_groups=draft)


def test_one_budget_serves_both_models() -> None:
    config = resolved(SMALL, kv_cache_memory="4MiB")
    assert config.draft_pools is not None
    assert config.pools.total_bytes + config.draft_pools.total_bytes <= 4 * 2**20
    assert config.pools.total_bytes + config.draft_pools.total_bytes > 3.9 * 2**20
    [full] = config.pools.num_blocks
    draft_full, window = config.draft_pools.num_blocks
    assert full == draft_full, "both hold the same positions"
    assert window < full
    assert len(config.pools.block_bytes) == 1
    alone = resolved(None, kv_cache_memory="4MiB")
    assert alone.draft_pools is None
    assert alone.pools.num_blocks[0] > full
    with pytest.raises(CapacityError, match="kv_cache_memory"):
        resolved(SMALL, kv_cache_memory=20_000)


def test_what_a_draft_model_switches_on() -> None:
    assert resolved(None).speculation.speculative is Speculative.OFF
    assert resolved(SMALL).speculation.speculative is Speculative.DRAFT
    assert resolved(SMALL, speculative="ngram").speculation.speculative is Speculative.NGRAM
    assert resolved(SMALL, speculative="off").speculation.speculative is Speculative.OFF
    with pytest.raises(UsageError, match="needs draft_model"):
        resolved(None, speculative="draft")
    with pytest.raises(UsageError, match="needs a KV cache"):
        resolved(SMALL, kv_allocator="none")


def test_a_draft_model_is_a_name_a_path_or_an_open_one() -> None:
    assert open_draft(None) is None
    with pytest.raises(UsageError, match="draft_quantize is for a draft_model"):
        open_draft(None, quantize="q4_0")
    with pytest.raises(UsageError, match="not int"):
        open_draft(3)  # type: ignore[arg-type]


@pytest.mark.models
def test_a_wrong_vocabulary_is_refused_before_anything_is_loaded() -> None:
    def never(*_: object) -> Any:
        raise AssertionError("weights are packed")

    target, draft = open_model("smollm2-135m"), open_model("gemma3-270m")
    with pytest.raises(UsageError, match="gemma3-270m cannot draft for smollm2-135m: token 0"):
        build_engine(target, EngineOptions(), never, draft=draft)


@pytest.mark.models
def test_both_models_share_their_workers() -> None:
    """Two pools of threads would spin against each other for the same cores."""
    model = open_model("smollm2-135m")
    engine: Engine = build_engine(model, EngineOptions(num_threads=2), draft=model)
    drafter = engine.speculator._drafters[Speculative.DRAFT]
    assert isinstance(drafter, DraftModel)
    assert drafter._executor.pool is not None
    assert drafter._executor.pool.num_threads == 2
    pools = {id(drafter._executor.pool), id(engine.executor.pool)}
    assert len(pools) == 1
