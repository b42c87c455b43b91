"""The native interpreter: a model recorded once into a step program, run by the C++ core.

    Program → record → fuse → plan → lower → one native call per step

No torch. Memory: packed weights, the KV cache as touched, and buffers for the largest step seen so
far (address space is reserved for the largest allowed, pages are touched by use).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.errors import CapacityError, NativeError, UsageError
from headrace.ops.batch import Batch, Int32Array
from headrace.ops.contract import Rows
from headrace.ops.fuse import fuse
from headrace.ops.kv import KVFormat, KVGroupSpec
from headrace.ops.lower import NATIVE_KV_FORMATS, Lowering, new_program
from headrace.ops.numerics import KV_LAYOUT, NUMERICS_ID
from headrace.ops.packed import PackedWeights, Packer, activation_kind
from headrace.ops.program import Program
from headrace.ops.record import record
from headrace.ops.recording import Op, Recording, Value

if TYPE_CHECKING:
    from headrace.native import _core

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OpTrace:
    """One op of a step as the model wrote it, with copies of what it read and wrote, float32
    [rows, columns]. output is None for kv_write."""

    op: Op
    inputs: tuple[Floats, ...]
    output: Floats | None


class NativeModel:
    """An Executor (ops/executor.py) on the native core. One step at a time.

    max_tokens, max_requests: of one step. max_context: positions 0 … max_context − 1 (default: the
    model's). num_threads: default all CPUs this process may use. isa: a level of
    `_core.available_isas()` (default: HEADRACE_ISA, else the best). keep: every value keeps its own
    memory, for `trace_step`. fusion=False: one kernel per op; the same bits, for comparison (keep
    implies it). pool: workers of another NativeModel, to be shared with it (num_threads then only
    counts for packing). weights: packed by another NativeModel of the same model. pack: packs the
    weights (ops/weight_cache.py) instead of ops.packed.pack_all. edit: changes recorded ops one by
    one before fusion, edit_fused: records after it (`verify` plants its faults so).
    Raises ModelFileError for a model the native path cannot run, UsageError for a bad parameter,
    NativeError where this machine cannot run the core.
    """

    def __init__(
        self,
        program: Program,
        *,
        max_tokens: int = 512,
        max_requests: int = 64,
        max_context: int | None = None,
        num_threads: int | None = None,
        isa: str | None = None,
        keep: bool = False,
        fusion: bool = True,
        pool: _core.Pool | None = None,
        weights: PackedWeights | None = None,
        pack: Packer | None = None,
        edit: Callable[[Op], Op] | None = None,
        edit_fused: Callable[[Op], Op] | None = None,
    ) -> None:
        threads = len(os.sched_getaffinity(0)) if num_threads is None else num_threads
        context = program.max_context if max_context is None else max_context
        self._kv_groups = program.kv_groups
        self._vocab_size = program.vocab_size
        self._hidden_size = program.hidden_size
        self._keep = keep
        self.recording: Recording = record(program)
        if edit is not None:
            self.recording = self.recording.edited(edit)
        try:
            core_program = new_program(
                threads=threads,
                isa=isa,
                max_tokens=max_tokens,
                max_requests=max_requests,
                max_context=context,
                pool=pool,
            )
        except ValueError as error:
            raise UsageError(f"native model: {error}.") from error
        except RuntimeError as error:
            raise NativeError(f"{error}.") from error
        self.weights = weights or PackedWeights(
            self.recording, program.weights, threads=threads, pack=pack
        )
        tensors = program.weights
        self.fused: Recording = fuse(
            self.recording,
            lambda name: activation_kind(tensors[name]),
            fusion=fusion and not keep,
        )
        if edit_fused is not None:
            self.fused = self.fused.edited(edit_fused)
        self._lowering = Lowering(
            self.fused, self.weights, self._kv_groups, core_program, context, keep=keep
        )
        self._program = self._lowering.program
        step_outputs, prompt_outputs, final_outputs = self.recording.outputs
        self._logits = self._view(step_outputs["logits"])
        self._hidden = self._view(step_outputs["hidden"])
        self._prompt_logits = self._view(prompt_outputs["logits"])
        self._final = self._view(final_outputs["final"])
        self._steps = 0
        self._num_tokens = 0
        self._batch: Batch | None = None  # the last one, and its arrays as the core takes them
        self._arrays: tuple[Any, ...] = ()

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        return self._kv_groups

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def hidden_size(self) -> int:
        return self._hidden_size

    @property
    def pool(self) -> _core.Pool:
        """See Executor."""
        return self._program.pool

    @property
    def num_fused(self) -> int:
        """Records of the step that stand for several ops each."""
        return sum(len(op.parts) > 1 for op in self.fused.segments[0])

    @property
    def isa(self) -> str:
        """The instruction-set level the kernels run at."""
        return str(self._program.isa)

    @property
    def hidden(self) -> Floats:
        """The last step's "hidden" [T, E]: a view, valid until the next step."""
        return self._hidden[: self._num_tokens]

    def allocate_kv(self, num_blocks: Sequence[int], block_size: int, fmt: KVFormat) -> None:
        """See Executor. block_size: a multiple of 16. Raises UsageError,
        or CapacityError where there is no memory."""
        try:
            self._program.allocate_kv(list(num_blocks), block_size, NATIVE_KV_FORMATS[fmt])
        except ValueError as error:
            raise UsageError(f"KV cache: {error}.") from error
        except MemoryError as error:
            raise CapacityError("KV cache: the system refuses that much address space.") from error

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        try:
            for source, destination in pairs:
                self._program.copy_block(group, source, destination)
        except ValueError as error:
            raise UsageError(f"KV cache: {error}.") from error

    @property
    def kv_identity(self) -> str:
        """See Executor."""
        return f"{NUMERICS_ID}/{KV_LAYOUT}"

    def read_block(self, group: int, block: int) -> npt.NDArray[np.uint8]:
        """See Executor: a view."""
        return self._block(group, block).reshape(-1)

    def write_block(self, group: int, block: int, data: npt.NDArray[np.uint8]) -> None:
        """See Executor."""
        view = self._block(group, block)
        view[:] = data.reshape(view.shape)

    def _block(self, group: int, block: int) -> npt.NDArray[np.uint8]:
        """The KV memory of a block, uint8 [layers, bytes]: its layers lie together."""
        pages: npt.NDArray[np.uint8] = self._program.kv_bytes(group)
        assert 0 <= block < pages.shape[1], f"block {block} of group {group}"
        return pages[:, block]

    def run(self, batch: Batch) -> Floats:
        """See Executor. Raises UsageError naming the array and the value that does not fit;
        nothing has run then."""
        if batch is not self._batch:  # a batch may come again with other numbers in its arrays
            self._batch = batch
            self._arrays = (
                batch.tokens,
                batch.positions,
                batch.spans,
                batch.context_lens,
                batch.logit_rows,
                batch.prompt_rows,
                tuple((g.slots, g.block_tables, g.first_pos) for g in batch.groups),
            )
        try:
            self._program.run(*self._arrays)
        except (ValueError, TypeError) as error:
            raise UsageError(f"step: {error}.") from error
        self._steps += 1
        self._num_tokens = batch.num_tokens
        return self._logits[: batch.logit_rows.shape[0]]

    def prompt_logits(self, batch: Batch, rows_per_call: int = 8) -> Iterator[Floats]:
        """See Executor. rows_per_call: 1 … 64."""
        return self._rows(1, batch.prompt_rows, rows_per_call, self._prompt_logits, "prompt logits")

    def final_hidden(
        self, batch: Batch, rows: Int32Array, rows_per_call: int = 64
    ) -> Iterator[Floats]:
        """See Executor. rows_per_call: 1 … 64."""
        return self._rows(2, rows, rows_per_call, self._final, "final hidden values")

    def _rows(
        self, segment: int, rows: Int32Array, rows_per_call: int, out: Floats, what: str
    ) -> Iterator[Floats]:
        """Runs a segment behind the step for some rows at a time."""
        step = self._steps
        for start in range(0, rows.shape[0], rows_per_call):
            assert self._steps == step, f"{what} after another step"
            chosen = rows[start : start + rows_per_call]
            try:
                self._program.run_rows(chosen, segment)
            except ValueError as error:
                raise UsageError(f"{what}: {error}.") from error
            yield out[: chosen.shape[0]]

    # ---- looking inside -------------------------------------------------------------------------

    def trace_step(self, batch: Batch) -> tuple[OpTrace, ...]:
        """Runs a step and returns every op of it with its inputs and output (keep=True only)."""
        return tuple(
            OpTrace(
                t.op,
                tuple(x.copy() for x in t.inputs),
                None if t.output is None else t.output.copy(),
            )
            for t in self.view_step(batch)
        )

    def view_step(self, batch: Batch) -> Iterator[OpTrace]:
        """Runs a step and passes through its ops like `trace_step`, but with views instead of
        copies: valid until the next step."""
        assert self._keep, "tracing needs NativeModel(keep=True)"
        self.run(batch)
        counts = {
            Rows.TOKENS: batch.num_tokens,
            Rows.LOGIT_ROWS: int(batch.logit_rows.shape[0]),
        }

        def view(value: Value) -> Floats:
            return self._view(value)[: counts[value.rows]]

        for op in self.recording.segments[0]:
            inputs = tuple(view(v) for v in op.inputs if isinstance(v, Value))
            output = op.output
            yield OpTrace(op, inputs, view(output) if isinstance(output, Value) else None)

    def profile(self, on: bool) -> None:
        """Times every op of the steps that follow (each pays a barrier and a clock)."""
        self._program.profile(on)

    def op_seconds(self) -> tuple[tuple[Op, float], ...]:
        """(fused op, seconds) of the last step and the last prompt rows; () without profile."""
        seconds = self._program.op_seconds
        return tuple(zip(self.fused.ops(), seconds, strict=True)) if seconds else ()

    def _view(self, value: Value) -> Floats:
        view: Floats = self._program.array(self._lowering.matrix(value))
        return view
