"""From the settings of a measurement to an engine's configuration and to what the gate checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.cases import Case
from headrace.engine.config import EngineConfig, EngineOptions, Machine, resolve
from headrace.engine.model import OpenModel, vocabulary_of
from headrace.errors import CapacityError, UsageError
from headrace.ops.kv import KVFormat
from headrace.verify.faults import NO_FAULT, Fault
from headrace.verify.subject import Subject
from headrace.verify.workload import QUICK

#: Models with more weights than this are checked on a shorter text, so that the check stays short
#: beside the measurement; `headrace verify` has the long one.
_LARGE_BYTES = 600_000_000
_LARGE_TEXT = 300


@dataclass(frozen=True, slots=True)
class Settings:
    """What every case has in common; None = the engine's default. threads: one measurement for
    each. ops: also time every op. fault: planted before the check, which must then fail."""

    threads: tuple[int | None, ...] = (None,)
    kv_cache_dtype: str = "bf16"
    isa: str | None = None
    block_size: int = 16
    max_num_batched_tokens: int | None = None
    kv_cache_memory: str | None = None
    ops: bool = False
    fault: Fault = NO_FAULT


def check_context(model: OpenModel, cases: Sequence[Case]) -> None:
    """Raises UsageError naming the first case that is longer than the model's context."""
    for case in cases:
        if case.context > model.program.max_context:
            raise UsageError(
                f"{case.label} needs a context of {case.context} tokens, and {model.name} has "
                f"{model.program.max_context}."
            )


def num_threads(count: int | None) -> int:
    """None = all CPUs this process may use."""
    return Machine.probe(os.environ).num_cpus if count is None else count


def make_config(
    model: OpenModel, cases: Sequence[Case], settings: Settings, threads: int
) -> EngineConfig:
    """An engine for all cases. Raises UsageError, or CapacityError when a batch does not fit."""
    block = settings.block_size
    # A block more: a sequence that goes on from a kept prefix copies the block it writes to.
    longest = max(case.context for case in cases) + block
    batch = max(case.batch for case in cases)
    options = EngineOptions(
        max_model_len=min(longest, model.program.max_context),
        max_num_seqs=batch,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=block,
        kv_cache_dtype=settings.kv_cache_dtype,
        kv_cache_memory=settings.kv_cache_memory,
        num_threads=threads,
    )
    machine = Machine.probe(os.environ)

    def resolved(machine: Machine, options: EngineOptions = options) -> EngineConfig:
        return resolve(
            options, model.program.kv_groups, model.program.max_context, machine,
            weight_bytes=model.weight_bytes,
        )  # fmt: skip

    config = resolved(machine)
    wanted = resolve(
        EngineOptions(
            max_model_len=options.max_model_len,
            max_num_seqs=batch,
            max_num_batched_tokens=options.max_num_batched_tokens,
            block_size=block,
            kv_cache_dtype=options.kv_cache_dtype,
        ),
        model.program.kv_groups,
        model.program.max_context,
        Machine(None, machine.num_cpus),
    )
    if config.pools.total_bytes < wanted.pools.total_bytes:
        raise CapacityError(
            f"{batch} sequences of {longest} tokens need {wanted.pools.total_bytes / 2**20:,.0f} "
            f"MiB of KV memory, and {config.pools.total_bytes / 2**20:,.0f} MiB can be had; lower "
            f"-npl, -p, -n or -d, or raise --kv-cache-memory."
        )
    return config


def make_subject(model: OpenModel, settings: Settings, threads: int) -> Subject:
    """What the gate checks: the same model, threads, level, KV format and block size."""
    return Subject(
        model.program,
        num_ids=vocabulary_of(model).num_ids,
        encode=lambda text: model.tokenizer.encode(text, add_special=False),
        kv_format=KVFormat(settings.kv_cache_dtype),
        num_threads=threads,
        isa=settings.isa,
        fault=settings.fault,
        block_size=settings.block_size,
        length=QUICK if model.weight_bytes <= _LARGE_BYTES else _LARGE_TEXT,
        name=model.name,
    )
