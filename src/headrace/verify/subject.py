"""Subject: the model under test, and how the ladder builds engines on it.

All engines share the packed weights. A fault, if one is planted, is in every engine the subject
builds, as it would be in a real mistake; the reference never has it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace import __version__
from headrace.engine.admission import Vocabulary
from headrace.engine.config import EngineConfig, EngineOptions, Machine, resolve
from headrace.engine.core import Engine
from headrace.engine.prefix.stamp import ModelIdentity
from headrace.engine.sizing import PoolPlan
from headrace.engine.speculation.draft_model import DraftModel
from headrace.errors import UsageError
from headrace.native import core
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.ops.numerics import NUMERICS_ID
from headrace.ops.packed import PackedWeights
from headrace.ops.program import Program
from headrace.verify.faults import NO_FAULT, Fault
from headrace.verify.probe import Probe, Run, run_requests
from headrace.verify.workload import LONG, OUTPUT_ROOM, QUICK, Workload, make_workload

#: More than any verification needs; blocks are touched by use only.
_NUM_SEQS = 16
#: Stamp of prefixes that are saved and restored within one verification.
_IDENTITY = ModelIdentity("the model under test", "weights", "tokenizer")


@dataclass
class Subject:
    """program: the model. num_ids: the tokenizer's size (or the vocabulary's). encode: its
    tokenizer, None = pseudo-random prompts. kv_format: of every engine. num_threads, isa: None =
    default. length: tokens of the long text. draft: a model of the same vocabulary that guesses for
    it; None = the model itself. weights, draft_weights: filled by the first model built."""

    program: Program
    num_ids: int
    encode: Callable[[str], list[int]] | None = None
    kv_format: KVFormat = KVFormat.BF16
    num_threads: int | None = None
    isa: str | None = None
    fault: Fault = NO_FAULT
    block_size: int = 16
    length: int = LONG
    name: str = ""
    draft: Program | None = None
    weights: PackedWeights | None = None
    draft_weights: PackedWeights | None = None
    _runs: dict[str, Run] = field(default_factory=dict)

    @cached_property
    def workload(self) -> Workload:
        return make_workload(
            self.encode,
            self.num_ids,
            self.program.max_context,
            self.program.kv_groups,
            self.block_size,
            self.length,
        )

    def check(self) -> None:
        """Raises UsageError for parameters that no rung could run with."""
        least = 4 * self.block_size + OUTPUT_ROOM
        if self.program.max_context < least:
            raise UsageError(
                f"The model's context of {self.program.max_context} positions is too short to "
                f"verify; it takes {least}."
            )
        self.config()
        self.model(1)

    def conditions(self) -> dict[str, Any]:
        """What the results hold for: number formats, levels, sizes, versions."""
        levels = core().available_isas()
        return {
            "model": self.name,
            "headrace": __version__,
            "numerics_id": NUMERICS_ID,
            "weight_formats": sorted({t.format.name for t in self.program.weights.values()}),
            "kv_format": self.kv_format.value,
            "isa": self.model(1).isa,
            "isas": list(levels),
            "threads": self.num_threads or len(os.sched_getaffinity(0)),
            "text_tokens": len(self.workload.text),
            "block_size": self.block_size,
            "fault": self.fault.name if self.fault is not NO_FAULT else None,
        }

    @property
    def max_model_len(self) -> int:
        return min(len(self.workload.text) + OUTPUT_ROOM, self.program.max_context)

    @property
    def many(self) -> int:
        """Requests of the rungs that want many at once; fewer on the short text."""
        return 16 if self.length > QUICK else 6

    def room_behind(self, prompts: Sequence[list[int]]) -> int:
        """Tokens that fit behind the longest prompt."""
        return self.max_model_len - max(map(len, prompts))

    def model(self, max_tokens: int, **options: Any) -> NativeModel:
        """A native model on the shared weights."""
        chosen: dict[str, Any] = {
            "num_threads": self.num_threads,
            "isa": self.isa,
            "max_requests": _NUM_SEQS,
        } | options
        model = NativeModel(
            self.program,
            max_tokens=max_tokens,
            max_context=self.max_model_len,
            weights=self.weights,
            edit=self.fault.edit,
            edit_fused=self.fault.edit_fused,
            **chosen,
        )
        self.weights = model.weights
        return model

    def config(self, **options: Any) -> EngineConfig:
        """An engine configuration; options as in EngineOptions."""
        defaults: dict[str, Any] = {
            "max_model_len": self.max_model_len,
            "max_num_seqs": _NUM_SEQS,
            "max_num_batched_tokens": self.max_model_len,
            "block_size": self.block_size,
            "kv_cache_dtype": self.kv_format.value,
            "enable_prefix_caching": False,
        }
        drafts = options.get("speculative") == "draft"
        return resolve(
            EngineOptions(**(defaults | options)),
            self.program.kv_groups,
            self.program.max_context,
            Machine.probe({}),
            draft_groups=(self.draft or self.program).kv_groups if drafts else None,
        )

    def engine(
        self,
        edges: Sequence[int] = (),
        *,
        model: NativeModel | None = None,
        num_blocks: tuple[int, ...] | None = None,
        **options: Any,
    ) -> tuple[Engine, Probe]:
        """An engine (with the fault, if any) and its probe. num_blocks: pools of exactly so many
        blocks instead of a budget."""
        config = self.config(**options)
        if num_blocks is not None:
            pools = PoolPlan(num_blocks, config.pools.block_bytes)
            config = dataclasses.replace(config, pools=pools)
        executor = model or self.model(config.max_num_batched_tokens)
        probe = Probe(executor, edges)
        vocabulary = Vocabulary(num_ids=self.num_ids)
        drafter = None if config.draft_pools is None else self._drafter(executor, config)
        engine = self.fault.engine(
            executor, vocabulary, config, probe, draft=drafter, identity=lambda: _IDENTITY
        )
        return engine, probe

    def _drafter(self, executor: NativeModel, config: EngineConfig) -> DraftModel:
        """The draft model of an engine, on the workers of its executor."""
        assert config.draft_pools is not None
        program = self.draft or self.program
        context = min(config.max_model_len, program.max_context)
        model = NativeModel(
            program,
            max_tokens=config.max_num_batched_tokens,
            max_requests=config.max_num_seqs,
            max_context=context,
            isa=self.isa,
            weights=self.weights if self.draft is None else self.draft_weights,
            pool=executor.pool,
        )
        self.draft_weights = model.weights
        config = dataclasses.replace(config, pools=config.draft_pools, max_model_len=context)
        return DraftModel(model, config, min(self.num_ids, program.vocab_size))

    @cached_property
    def whole(self) -> Run:
        """The long text in one chunk, then greedy tokens: what most rungs compare with."""
        return run_requests(*self.engine(self.workload.edges), [self.workload.text])

    def once(self, name: str, run: Callable[[], Run]) -> Run:
        """What run() gives, computed when the name is first asked for: more rungs than one compare
        with it."""
        if name not in self._runs:
            self._runs[name] = run()
        return self._runs[name]

    def alone(self, short: int) -> Run:
        """A short prompt by itself, then greedy tokens."""
        prompts = [self.workload.shorts[short]]
        return self.once(f"alone {short}", lambda: run_requests(*self.engine(), prompts))
