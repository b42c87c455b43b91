"""Executor: a program bound to weights and KV memory, as the engine sees it.

The native interpreter and the reference implement it, so the whole engine runs on either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from headrace.ops.batch import Batch, Int32Array
from headrace.ops.kv import KVFormat, KVGroupSpec

if TYPE_CHECKING:
    from headrace.native import _core


class Executor(Protocol):
    """Runs steps. One thread at a time."""

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]: ...

    @property
    def vocab_size(self) -> int:
        """Rows of the output head; may exceed the tokenizer's ids (padded vocabulary)."""
        ...

    @property
    def hidden_size(self) -> int:
        """E, columns of final hidden values."""
        ...

    @property
    def pool(self) -> _core.Pool | None:
        """Workers of the native core that may share other work between steps; None: there are
        none."""
        ...

    def allocate_kv(self, num_blocks: Sequence[int], block_size: int, fmt: KVFormat) -> None:
        """Gives each group memory for num_blocks[g] blocks; drops what was held before.

        Memory is reserved, not touched: a page costs nothing until a position is written to it.
        """
        ...

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks (source, destination) in every layer of `group` (copy-on-write)."""
        ...

    @property
    def kv_identity(self) -> str:
        """What the bytes of a stored block follow from besides model, number format and block size:
        the arithmetic and the layout. Blocks of another identity must never be used."""
        ...

    def read_block(self, group: int, block: int) -> npt.NDArray[np.uint8]:
        """The bytes of a block over all layers of `group`: uint8 [block bytes], a view or a copy,
        valid until the next call. Their number depends on group, format and block size alone."""
        ...

    def write_block(self, group: int, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Gives a block the bytes that `read_block` gave, of this executor or of an equal one."""
        ...

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Runs one step: logits float32 [len(batch.logit_rows), V], valid until the next call.

        Mutates the KV memory named by the batch's slots.
        """
        ...

    def prompt_logits(
        self, batch: Batch, rows_per_call: int = 8
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Logits of batch.prompt_rows of the step just run, a few rows at a time, in order.

        Each array is valid until the next one is asked for; all end with the next `run`.
        """
        ...

    def final_hidden(
        self, batch: Batch, rows: Int32Array, rows_per_call: int = 64
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Hidden values after the final norm, float32 [n, E], of any rows of the step just run,
        a few at a time, in order; valid as `prompt_logits`' are."""
        ...
