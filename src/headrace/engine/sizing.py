"""How many blocks: of one sequence, and of each group's pool. Pure functions.

One byte budget serves all KV groups. A window group needs a bounded number of blocks per sequence,
because blocks behind the window are freed; the pools are cut in the ratio of what one sequence of
the full context needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import CapacityError
from headrace.ops.kv import KVElement, KVGroupSpec


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def peak_blocks(
    window: int | None, num_positions: int, chunk: int, block_size: int, *, frees_window: bool
) -> int:
    """Most blocks of one group that a sequence of num_positions holds at any time.

    While a chunk of n tokens runs, w−1 positions before it and the n themselves must be there:
    at most ceil((w − 1 + n) / B) + 1 blocks, since the span may start anywhere in a block.
    """
    whole = ceil_div(num_positions, block_size)
    if window is None or not frees_window:
        return whole
    return min(whole, ceil_div(window - 1 + chunk, block_size) + 1)


def fair_cap(wants: Sequence[int], total: int) -> int:
    """The highest limit for each under which all wants together are at most `total`."""
    cap = max(wants, default=0)
    while cap and sum(min(want, cap) for want in wants) > total:
        cap -= 1
    return cap


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pools a budget buys. num_blocks[g] blocks of block_bytes[g] bytes in group g."""

    num_blocks: tuple[int, ...]
    block_bytes: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        return sum(n * b for n, b in zip(self.num_blocks, self.block_bytes, strict=True))

    def part(self, first: int, end: int | None = None) -> PoolPlan:
        """The pools of groups first … end − 1."""
        return PoolPlan(self.num_blocks[first:end], self.block_bytes[first:end])


def plan_pools(
    groups: Sequence[KVGroupSpec],
    fmt: KVElement,
    block_size: int,
    *,
    budget_bytes: int | None,
    max_model_len: int,
    max_num_seqs: int,
    max_chunk: int,
    frees_window: bool,
) -> PoolPlan:
    """Cuts budget_bytes into pools; None = enough for max_num_seqs full contexts.

    Never more than max_num_seqs sequences of max_model_len can use. Raises CapacityError when the
    budget is below one block of each group.
    """
    per_sequence = [
        peak_blocks(g.window, max_model_len, max_chunk, block_size, frees_window=frees_window)
        for g in groups
    ]
    block_bytes = tuple(block_size * g.bytes_per_position(fmt) for g in groups)
    sequence_bytes = sum(n * b for n, b in zip(per_sequence, block_bytes, strict=True))
    wanted = [n * max_num_seqs for n in per_sequence]
    if budget_bytes is None or budget_bytes >= sequence_bytes * max_num_seqs:
        return PoolPlan(tuple(wanted), block_bytes)
    bought = [budget_bytes * n // sequence_bytes for n in per_sequence]
    if min(bought) < 1:
        raise CapacityError(
            f"The KV cache budget of {budget_bytes:,} bytes is too small for this model: a context "
            f"of {max_model_len} tokens takes {sequence_bytes:,} bytes in {fmt.value}; raise "
            f"kv_cache_memory or lower max_model_len."
        )
    return PoolPlan(tuple(bought), block_bytes)
