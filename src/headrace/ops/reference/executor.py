"""ReferenceExecutor: the engine's steps in torch, keys and values in pages.

Slow, but the whole engine runs on it: batching, chunking, forks, preemption. `PagedStore` is the
only place of the reference that knows slots and block tables; the mathematics is that of
`ReferenceModel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.ops.batch import Batch
from headrace.ops.kv import KVFormat, KVGroupSpec
from headrace.ops.program import Program
from headrace.ops.reference.functions import KV_DTYPES
from headrace.ops.reference.ops import ReferenceOps, StepRows
from headrace.ops.reference.weights import DEFAULT_CACHE_BYTES, WeightStore


class KVPages:
    """Memory of all groups in the KV number format: per (group, layer) keys [blocks · B, K·Dk] and
    values [blocks · B, K·Dv]; row s is slot s. Reserved by the OS, touched when written."""

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        block_size: int,
        fmt: KVFormat,
    ) -> None:
        self.block_size = block_size
        dtype = KV_DTYPES[fmt]
        self._k: dict[tuple[int, int], Tensor] = {}
        self._v: dict[tuple[int, int], Tensor] = {}
        for g, (spec, blocks) in enumerate(zip(groups, num_blocks, strict=True)):
            for layer in range(len(spec.layers)):
                rows = blocks * block_size
                self._k[g, layer] = torch.empty(rows, spec.kv_heads * spec.k_dim, dtype=dtype)
                self._v[g, layer] = torch.empty(rows, spec.kv_heads * spec.v_dim, dtype=dtype)

    def store(self, group: int, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Rounds k and v into the rows `slots`; −1 = row not stored."""
        kept = slots >= 0
        for memory, values in ((self._k, k), (self._v, v)):
            pages = memory[group, layer]
            pages[slots[kept]] = values[kept].to(pages.dtype)

    def load(self, group: int, layer: int, slots: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """[k, v] of the rows `slots`, in `dtype`."""
        return [memory[group, layer][slots].to(dtype) for memory in (self._k, self._v)]

    def copy(self, group: int, source: int, destination: int) -> None:
        """Copies a block in every layer of the group."""
        size = self.block_size
        for memory in (self._k, self._v):
            for (g, _), pages in memory.items():
                if g == group:
                    block = pages[source * size : (source + 1) * size]
                    pages[destination * size : (destination + 1) * size] = block

    def block(self, group: int, block: int) -> list[Tensor]:
        """Views of a block's rows: keys and values of each layer of the group."""
        rows = slice(block * self.block_size, (block + 1) * self.block_size)
        return [
            memory[place][rows] for place in self._k if place[0] == group
            for memory in (self._k, self._v)
        ]  # fmt: skip


class PagedStore:
    """The `KVStore` of one step: writes through the batch's slots, reads through its tables."""

    def __init__(
        self, pages: KVPages, specs: Sequence[KVGroupSpec], batch: Batch, dtype: torch.dtype
    ) -> None:
        self._pages = pages
        self._batch = batch
        self._dtype = dtype
        self._slots = [torch.from_numpy(g.slots.astype(np.int64)) for g in batch.groups]
        self._held = [
            [self._request(g, r, spec.window) for r in range(batch.num_requests)]
            for g, spec in enumerate(specs)
        ]

    def write(self, group: int, layer: int, k: Tensor, v: Tensor) -> None:
        self._pages.store(group, layer, self._slots[group], k, v)

    def read(self, group: int, layer: int, request: int) -> tuple[Tensor, Tensor, Tensor]:
        positions, slots = self._held[group][request]
        k, v = self._pages.load(group, layer, slots, self._dtype)
        return k, v, positions

    def _request(self, group: int, request: int, window: int | None) -> tuple[Tensor, Tensor]:
        """Positions that the request's rows may see, and their slots."""
        batch, view = self._batch, self._batch.groups[group]
        begin = int(batch.spans[request])
        end = int(batch.context_lens[request])
        first = 0
        if window is not None and begin < int(batch.spans[request + 1]):
            first = max(0, int(batch.positions[0, begin]) - window + 1)
        assert int(view.first_pos[request]) <= first, "a visible position was freed"
        positions = np.arange(first, end, dtype=np.int64)
        size = self._pages.block_size
        blocks = view.block_tables[request, positions // size].astype(np.int64)
        assert (blocks >= 0).all(), "a visible position has no block"
        slots = blocks * size + positions % size
        return torch.from_numpy(positions), torch.from_numpy(slots)


class ReferenceExecutor:
    """Implements `ops.executor.Executor` in `dtype`; logits come back as float32."""

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype = torch.float32,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._program = program
        self._dtype = dtype
        self._weights = WeightStore(program.weights, dtype, cache_bytes)
        self._pages: KVPages | None = None
        self._hidden: Tensor | None = None

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        return self._program.kv_groups

    @property
    def vocab_size(self) -> int:
        return self._program.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._program.hidden_size

    @property
    def pool(self) -> None:
        """See `Executor`."""
        return None

    def allocate_kv(self, num_blocks: Sequence[int], block_size: int, fmt: KVFormat) -> None:
        """See `Executor`."""
        self._pages = KVPages(self.kv_groups, num_blocks, block_size, fmt)

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """See `Executor`. Pairs are copied in order."""
        assert self._pages is not None, "allocate_kv comes first"
        for source, destination in pairs:
            self._pages.copy(group, source, destination)

    @property
    def kv_identity(self) -> str:
        """See `Executor`. The libraries under torch may round otherwise with every version."""
        return f"reference/{self._dtype}/torch-{torch.__version__}"

    def read_block(self, group: int, block: int) -> npt.NDArray[np.uint8]:
        """See `Executor`: a copy."""
        assert self._pages is not None, "allocate_kv comes first"
        parts = [part.view(torch.uint8).reshape(-1) for part in self._pages.block(group, block)]
        data: npt.NDArray[np.uint8] = torch.cat(parts).numpy()
        return data

    def write_block(self, group: int, block: int, data: npt.NDArray[np.uint8]) -> None:
        """See `Executor`."""
        assert self._pages is not None, "allocate_kv comes first"
        at = 0
        for part in self._pages.block(group, block):
            memory = part.view(torch.uint8)
            piece = data[at : at + memory.numel()]
            memory.copy_(torch.from_numpy(piece.copy()).reshape(memory.shape))
            at += memory.numel()

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See `Executor`."""
        assert self._pages is not None, "allocate_kv comes first"
        ops = self._ops(batch, batch.prompt_rows)
        self._program.step(ops)
        self._hidden = ops.outputs["hidden"]
        return _numbers(ops.outputs["logits"])

    def prompt_logits(
        self, batch: Batch, rows_per_call: int = 8
    ) -> Iterator[npt.NDArray[np.float32]]:
        """See `Executor`."""
        assert self._hidden is not None, "run comes first"
        for start in range(0, len(batch.prompt_rows), rows_per_call):
            ops = self._ops(batch, batch.prompt_rows[start : start + rows_per_call])
            self._program.prompt_logits(ops, self._hidden)
            yield _numbers(ops.outputs["logits"])

    def final_hidden(
        self, batch: Batch, rows: npt.NDArray[np.int32], rows_per_call: int = 64
    ) -> Iterator[npt.NDArray[np.float32]]:
        """See `Executor`."""
        assert self._hidden is not None, "run comes first"
        for start in range(0, len(rows), rows_per_call):
            ops = self._ops(batch, rows[start : start + rows_per_call])
            self._program.final_hidden(ops, self._hidden)
            yield _numbers(ops.outputs["final"])

    def _ops(self, batch: Batch, prompt_rows: npt.NDArray[np.int32]) -> ReferenceOps:
        assert self._pages is not None
        spans = tuple(int(s) for s in batch.spans)
        rows = StepRows(
            tokens=_ids(batch.tokens),
            positions=_ids(batch.positions[0]),
            spans=spans,
            logit_rows=_ids(batch.logit_rows),
            prompt_rows=_ids(prompt_rows),
        )
        store = PagedStore(self._pages, self.kv_groups, batch, self._dtype)
        return ReferenceOps(self._weights, rows, store)


def _ids(array: npt.NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _numbers(values: Tensor) -> npt.NDArray[np.float32]:
    result: npt.NDArray[np.float32] = values.detach().to(torch.float32).numpy()
    return result
