"""EngineConfig: every limit of one engine, resolved. `resolve` turns options and "auto" into it.

Pure: what the machine offers comes in as an argument. The result is printed at start.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from headrace.engine.scheduler import Batching, Policy
from headrace.engine.sizing import PoolPlan, plan_pools
from headrace.engine.speculation.choice import (
    MAX_DRAFT_TOKENS,
    NO_SPECULATION,
    Acceptance,
    Choice,
    Speculative,
)
from headrace.errors import UsageError
from headrace.formats.cache_dirs import packed_dir
from headrace.ops.kv import KVFormat, KVGroupSpec
from headrace.ops.weight_cache import directory_of

#: Longest context by default; a model's own may be much longer and is then used when asked for.
DEFAULT_MAX_MODEL_LEN = 8192
#: Share of free memory that the KV cache may take by default. It is touched only when used.
DEFAULT_MEMORY_SHARE = 0.5
MAX_MODEL_LEN = 1 << 24
#: What the native core takes (native/src/program.cpp, pool.cpp).
MAX_BATCHED_TOKENS = 1 << 20
MAX_THREADS = 1024
DEBUG_VARIABLE = "HEADRACE_DEBUG_INVARIANTS"
WEIGHT_CACHE_VARIABLE = "HEADRACE_WEIGHT_CACHE"

_E = TypeVar("_E", bound=Enum)


class Allocator(Enum):
    """How KV memory is given out."""

    PAGED = "paged"  # blocks on demand, shared prefixes
    CONTIGUOUS = "contiguous"  # one run of blocks per sequence, reserved to its maximum
    GROWING = "growing"  # one run of blocks per sequence, doubled and moved when it is full
    NONE = "none"  # no cache: every step computes the whole history on throw-away blocks


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a user may set; None = auto. Names are vLLM's where vLLM has the option.

    max_model_len: longest prompt + output (auto: the model's context, at most 8192).
    max_num_seqs: most sequences that run together. max_num_batched_tokens: most tokens of one step
    (auto: 512, and never below max_num_seqs; with kv_allocator "none" never below max_model_len).
    max_prefill_tokens: most prompt tokens of one step (auto: no limit of its own).
    block_size: positions per block, a multiple of 16. kv_cache_dtype: "bf16" | "f16" | "f32".
    kv_cache_memory: bytes, or "2GiB" and the like (auto: what max_num_seqs full contexts need, at
    most half of the free memory). kv_allocator, batching: see Allocator, Batching.
    speculative: who guesses tokens ahead: "off" | "ngram" | "draft" (auto: "draft" where there is a
    draft model, else "off"); num_draft_tokens: how many in every round, 1 … 64, or "auto" (as many
    as pay); acceptance: "coupled" | "rejection". Defaults of requests that choose nothing of their
    own. See docs/speculation.md.
    enable_prefix_caching: keep computed prefixes for later requests (auto: with kv_allocator
    "paged", the only one that can). schedule_policy: "fcfs" (first come, first served) | "lpm"
    (the request with the longest cached prefix first).
    seed: makes unseeded requests repeatable. max_queue: most requests that wait.
    num_threads: worker threads (auto: the CPUs this process may use).
    kv_save: directory to restore prefixes from and to save them to (auto: none).
    weight_cache: "on", "off" or a directory for packed weights (auto: HEADRACE_WEIGHT_CACHE, else
    off).
    """

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    max_prefill_tokens: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "bf16"
    kv_cache_memory: int | str | None = None
    kv_allocator: str = "paged"
    batching: str = "continuous"
    speculative: str | None = None
    num_draft_tokens: int | str = "auto"
    acceptance: str = "coupled"
    enable_prefix_caching: bool | None = None
    schedule_policy: str = "fcfs"
    num_threads: int | None = None
    seed: int | None = None
    max_queue: int = 10_000
    weight_cache: str | None = None
    kv_save: str | os.PathLike[str] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineOptions:
        """Raises UsageError for an unknown name, with the nearest known one."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise UsageError(f"Unknown engine option {name!r}.{hint}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The resolved limits; see EngineOptions for the meaning of each. draft_pools: of the draft
    model, if there is one."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_tokens: int
    block_size: int
    kv_format: KVFormat
    kv_allocator: Allocator
    batching: Batching
    pools: PoolPlan
    num_threads: int
    seed: int | None
    max_queue: int
    debug_invariants: bool
    weight_cache: Path | None = None
    draft_pools: PoolPlan | None = None
    speculation: Choice = NO_SPECULATION
    prefix_caching: bool = False
    schedule_policy: Policy = Policy.FCFS
    kv_save: Path | None = None

    def describe(self) -> str:
        """One line for people: the limits in force."""
        drafts = ""
        if self.draft_pools is not None:
            drafts = f" (draft model: {self.draft_pools.total_bytes / 2**20:,.0f} MiB more)"
        return (
            f"context {self.max_model_len} tokens, ≤ {self.max_num_seqs} sequences, "
            f"≤ {self.max_num_batched_tokens} tokens per step, KV {self.kv_format.value} "
            f"{self.kv_allocator.value}, {self.pools.total_bytes / 2**20:,.0f} MiB in blocks of "
            f"{self.block_size}{drafts}, {self.batching.value} batching, {self.num_threads} threads"
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What resolve needs to know of the machine. free_bytes: None = unknown. weight_cache: the
    setting in force where no option says otherwise; packed_dir: the directory that "on" means."""

    free_bytes: int | None
    num_cpus: int
    debug_invariants: bool = False
    weight_cache: str | None = None
    packed_dir: Path = Path("packed")

    @classmethod
    def probe(cls, environ: Mapping[str, str]) -> Machine:
        """Looks at this machine. Raises UsageError for a bad environment variable."""
        flag = environ.get(DEBUG_VARIABLE, "0")
        if flag not in ("0", "1"):
            raise UsageError(f"{DEBUG_VARIABLE} must be 0 or 1, not {flag!r}.")
        setting = environ.get(WEIGHT_CACHE_VARIABLE) or None
        return cls(_free_bytes(), _num_cpus(), flag == "1", setting, packed_dir())


def resolve(
    options: EngineOptions,
    groups: Sequence[KVGroupSpec],
    max_context: int,
    machine: Machine,
    *,
    weight_bytes: int = 0,
    draft_groups: Sequence[KVGroupSpec] | None = None,
) -> EngineConfig:
    """Options, model and machine → EngineConfig. weight_bytes: what the weights will take of the
    free memory. draft_groups: of the draft model, None = there is none; the one KV budget is cut so
    that both models can hold the same positions. Raises UsageError, or CapacityError when the KV
    budget is below one block of each group."""
    whole_context = min(max_context, DEFAULT_MAX_MODEL_LEN)
    max_model_len = _integer("max_model_len", options.max_model_len, 2, MAX_MODEL_LEN)
    if max_model_len is not None and max_model_len > max_context:
        raise UsageError(
            f"max_model_len = {max_model_len} is longer than the model's context of {max_context}."
        )
    max_model_len = max_model_len or whole_context
    max_num_seqs = _integer("max_num_seqs", options.max_num_seqs, 1, 65536) or 1
    allocator = _choice("kv_allocator", options.kv_allocator, Allocator)
    batched = _integer(
        "max_num_batched_tokens", options.max_num_batched_tokens, 1, MAX_BATCHED_TOKENS
    )
    if batched is not None and batched < max_num_seqs:
        raise UsageError(
            f"max_num_batched_tokens = {batched} is below max_num_seqs = {max_num_seqs}: every "
            f"running sequence needs a token of each step."
        )
    batched = batched or max(512, max_num_seqs)
    if allocator is Allocator.NONE:
        batched = max(batched, max_model_len)
        if batched > MAX_BATCHED_TOKENS:
            raise UsageError(
                f'kv_allocator = "none" computes a whole context in one step, at most '
                f"{MAX_BATCHED_TOKENS:,} tokens; max_model_len = {max_model_len} is longer."
            )
    prefill = _integer("max_prefill_tokens", options.max_prefill_tokens, 1, batched) or batched
    block_size = _integer("block_size", options.block_size, 16, 4096) or 16
    if block_size % 16:
        raise UsageError(f"block_size = {block_size} must be a multiple of 16.")
    kv_format = _choice("kv_cache_dtype", options.kv_cache_dtype, KVFormat)
    prefix_caching = _prefix_caching(options.enable_prefix_caching, allocator)
    pools = _pools(
        options,
        (*groups, *(draft_groups or ())),
        kv_format,
        block_size,
        max_model_len,
        max_num_seqs,
        prefill,
        allocator,
        None if machine.free_bytes is None else max(machine.free_bytes - weight_bytes, 0),
    )
    return EngineConfig(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=batched,
        max_prefill_tokens=prefill,
        block_size=block_size,
        kv_format=kv_format,
        kv_allocator=allocator,
        batching=_choice("batching", options.batching, Batching),
        pools=pools.part(0, len(groups)),
        draft_pools=None if draft_groups is None else pools.part(len(groups)),
        num_threads=_integer("num_threads", options.num_threads, 1, MAX_THREADS)
        or min(machine.num_cpus, MAX_THREADS),
        seed=_integer("seed", options.seed, 0, 2**64 - 1),
        max_queue=_integer("max_queue", options.max_queue, 1, 2**31) or 1,
        debug_invariants=machine.debug_invariants,
        weight_cache=directory_of(options.weight_cache or machine.weight_cache, machine.packed_dir),
        speculation=_speculation(options, allocator, has_draft=draft_groups is not None),
        prefix_caching=prefix_caching,
        schedule_policy=_choice("schedule_policy", options.schedule_policy, Policy),
        kv_save=_kv_save(options.kv_save, prefix_caching),
    )


def _speculation(options: EngineOptions, allocator: Allocator, *, has_draft: bool) -> Choice:
    speculative = Speculative.DRAFT if has_draft else Speculative.OFF
    if options.speculative is not None:
        speculative = _choice("speculative", options.speculative, Speculative)
    if speculative is not Speculative.OFF and allocator is Allocator.NONE:
        raise UsageError(
            f'speculative = "{speculative.value}" needs a KV cache; kv_allocator is "none".'
        )
    if speculative is Speculative.DRAFT and not has_draft:
        raise UsageError(
            'speculative = "draft" needs draft_model: a smaller model with the same vocabulary.'
        )
    number = None
    if options.num_draft_tokens != "auto":
        if isinstance(options.num_draft_tokens, str):
            raise UsageError(
                f'num_draft_tokens = {options.num_draft_tokens!r} is neither a number nor "auto".'
            )
        number = _integer("num_draft_tokens", options.num_draft_tokens, 1, MAX_DRAFT_TOKENS)
    return Choice(speculative, number, _choice("acceptance", options.acceptance, Acceptance))


def _kv_save(wanted: object, prefix_caching: bool) -> Path | None:
    if wanted is None:
        return None
    name = os.fspath(wanted) if isinstance(wanted, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"kv_save = {wanted!r} is not a directory's name.")
    if not prefix_caching:
        raise UsageError(
            "kv_save needs the prefix cache, which is off: enable_prefix_caching is False, or "
            'kv_allocator is not "paged".'
        )
    try:
        directory = Path(name).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"kv_save = {wanted!r} lies in an unknown home directory.") from None
    if os.path.isfile(directory):
        raise UsageError(f"kv_save = {name!r} is a file; it must be a directory.")
    return directory


def _prefix_caching(wanted: object, allocator: Allocator) -> bool:
    if wanted is None:
        return allocator is Allocator.PAGED
    if not isinstance(wanted, bool):
        raise UsageError(f"enable_prefix_caching = {wanted!r} is neither true nor false.")
    if wanted and allocator is not Allocator.PAGED:
        raise UsageError(
            f'enable_prefix_caching needs kv_allocator "paged": with "{allocator.value}" no blocks '
            f"are shared."
        )
    return wanted


def _pools(
    options: EngineOptions,
    groups: Sequence[KVGroupSpec],
    kv_format: KVFormat,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    max_chunk: int,
    allocator: Allocator,
    free_bytes: int | None,
) -> PoolPlan:
    budget = None if options.kv_cache_memory is None else parse_bytes(options.kv_cache_memory)
    if budget is None and free_bytes is not None:
        budget = int(free_bytes * DEFAULT_MEMORY_SHARE)
    return plan_pools(
        groups,
        kv_format,
        block_size,
        budget_bytes=budget,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_chunk=max_chunk,
        frees_window=allocator is Allocator.PAGED,
    )


def parse_bytes(value: int | str) -> int:
    """A number of bytes: 1048576, "512MiB", "2GiB", "2GB", "1.5G" (K, M, G, T are powers of 1024,
    KB, MB, GB, TB powers of 1000). Raises UsageError."""
    rule = f'kv_cache_memory = {value!r} is not a size: bytes, or a number with a unit ("2GiB").'
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(rule)
    if isinstance(value, int):
        result = float(value)
    else:
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?B)?|B)?\s*", value, re.I)
        if match is None:
            raise UsageError(rule)
        base = 1000 if (match[3] or "").upper() == "B" else 1024
        power = 0 if match[2] is None else "KMGT".index(match[2].upper()) + 1
        result = float(match[1]) * base**power
    if not 1 <= result < 2**62:
        raise UsageError(rule)
    return int(result)


def _integer(name: str, value: object, low: int, high: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} = {value!r} is out of range: an integer {low} … {high}.")
    return value


def _choice(name: str, value: object, kinds: type[_E]) -> _E:
    for kind in kinds:
        if kind.value == value:
            return kind
    allowed = ", ".join(f'"{kind.value}"' for kind in kinds)
    raise UsageError(f"{name} = {value!r} is unknown: {allowed}.")


def _free_bytes() -> int | None:
    """Memory that can be had without swapping: what the system has, at most what this control
    group may still take. None where neither can be read."""
    found = [n for n in (_available_bytes(), _cgroup_room_bytes()) if n is not None]
    return min(found, default=None)


def _available_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _cgroup_room_bytes(root: str = "/sys/fs/cgroup") -> int | None:
    """Limit of a version-2 control group minus its use, file cache not counted as use; None
    without a limit ("max")."""
    try:
        with open(f"{root}/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open(f"{root}/memory.current", encoding="ascii") as file:
            used = int(file.read())
        with open(f"{root}/memory.stat", encoding="ascii") as file:
            stat = dict(line.split() for line in file)
        return max(limit - used + int(stat.get("file", 0)), 0)
    except (OSError, ValueError):
        return None


def _num_cpus() -> int:
    """CPUs this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
