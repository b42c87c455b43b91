"""A toy model for engine tests, whose text depends on every slot, table and block being right.

Its KV memory holds token ids. The logits of a position are a hash of the history *read back through
the block tables*, so a wrong slot, a stale table, a block that was freed or shared too early or a
token fed at the wrong position changes the text. `ToyModel.logits` is the same function of a plain
list of ids, with no engine in it: the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.engine import sampler
from headrace.engine.admission import Vocabulary
from headrace.engine.config import Allocator, EngineConfig
from headrace.engine.constraint import Constraint
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.outputs import Delta
from headrace.engine.prefix.stamp import ModelIdentity
from headrace.engine.scheduler import Batching, Policy
from headrace.engine.sizing import PoolPlan, plan_pools
from headrace.engine.speculation.choice import NO_SPECULATION, Choice
from headrace.engine.speculation.drafter import Drafter
from headrace.ops.batch import Batch
from headrace.ops.executor import Executor
from headrace.ops.kv import KVFormat, KVGroupSpec

VOCAB = 61
HIDDEN = 7  # "final hidden values": some of the logits, so that they depend on the history too
FULL = KVGroupSpec("full", (0,), 1, 2, 2)
WINDOW = 21  # not a multiple of any block size


def window_group(window: int = WINDOW) -> KVGroupSpec:
    return KVGroupSpec(f"window{window}", (1,), 1, 2, 2, window=window)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _entry(tokens: npt.ArrayLike, positions: npt.ArrayLike) -> np.uint64:
    """Hash of (token, position) pairs, summed: order enters through the positions."""
    t = np.asarray(tokens).astype(np.uint64)
    p = np.asarray(positions).astype(np.uint64)
    pairs = _mix(
        (t + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + p * np.uint64(0xD1B54A32D192ED03)
    )
    return np.uint64(pairs.sum(dtype=np.uint64))


def _logits(hashes: Sequence[np.uint64], vocab: int) -> npt.NDArray[np.float32]:
    state = np.zeros(1, np.uint64)
    for h in hashes:
        state = _mix(state * np.uint64(3) + h)
    ids = np.arange(vocab, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((_mix(state + ids) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 22)).astype(
        np.float32
    )


class ToyModel:
    """An Executor. groups: its KV groups. bad_token: a token whose row gets NaN logits."""

    def __init__(
        self,
        groups: tuple[KVGroupSpec, ...] = (FULL,),
        vocab: int = VOCAB,
        bad_token: int | None = None,
    ) -> None:
        self.groups = groups
        self.vocab = vocab
        self.bad_token = bad_token
        self.batches: list[tuple[int, ...]] = []  # new tokens per request of each step
        self.num_copied = 0
        self.fail_next: BaseException | None = None

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        return self.groups

    @property
    def vocab_size(self) -> int:
        return self.vocab

    @property
    def hidden_size(self) -> int:
        return HIDDEN

    @property
    def pool(self) -> None:
        return None

    def allocate_kv(self, num_blocks: Sequence[int], block_size: int, fmt: KVFormat) -> None:
        rng = np.random.default_rng(1)
        self.block_size = block_size
        self.memory = [rng.integers(0, self.vocab, n * block_size) for n in num_blocks]

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        size = self.block_size
        for source, target in pairs:
            assert source != target
            memory = self.memory[group]
            memory[target * size : (target + 1) * size] = memory[
                source * size : (source + 1) * size
            ]
            self.num_copied += 1

    @property
    def kv_identity(self) -> str:
        return "toy"

    def read_block(self, group: int, block: int) -> npt.NDArray[np.uint8]:
        return self._block(group, block).view(np.uint8)

    def write_block(self, group: int, block: int, data: npt.NDArray[np.uint8]) -> None:
        self._block(group, block)[:] = data.view(np.int64)

    def _block(self, group: int, block: int) -> npt.NDArray[np.int64]:
        return self.memory[group][block * self.block_size : (block + 1) * self.block_size]

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        self._check(batch)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        for memory, group in zip(self.memory, batch.groups, strict=True):
            written = group.slots >= 0
            slots = group.slots[written]
            assert len(set(slots.tolist())) == len(slots), "a slot with two writers"
            memory[slots] = batch.tokens[written]
        self.batches.append(tuple(np.diff(batch.spans).tolist()))
        return self._rows(batch, batch.logit_rows)

    def prompt_logits(
        self, batch: Batch, rows_per_call: int = 8
    ) -> Iterator[npt.NDArray[np.float32]]:
        for first in range(0, len(batch.prompt_rows), rows_per_call):
            yield self._rows(batch, batch.prompt_rows[first : first + rows_per_call])

    def final_hidden(
        self, batch: Batch, rows: npt.NDArray[np.int32], rows_per_call: int = 64
    ) -> Iterator[npt.NDArray[np.float32]]:
        for first in range(0, len(rows), rows_per_call):
            yield self._rows(batch, rows[first : first + rows_per_call])[:, :HIDDEN] - 1.5

    def _rows(self, batch: Batch, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        out = np.zeros((len(rows), self.vocab), np.float32)
        for i, row in enumerate(rows.tolist()):
            request = int(np.searchsorted(batch.spans, row, side="right")) - 1
            position = int(batch.positions[0, row])
            out[i] = _logits(
                [self._read(batch, g, request, position) for g in range(len(self.groups))],
                self.vocab,
            )
            if self.bad_token is not None and batch.tokens[row] == self.bad_token:
                out[i, 3] = np.nan
        return out

    def _read(self, batch: Batch, group: int, request: int, position: int) -> np.uint64:
        window = self.groups[group].window
        oldest = 0 if window is None else max(0, position - window + 1)
        view = batch.groups[group]
        assert view.first_pos[request] <= oldest, "a visible position was freed"
        positions = np.arange(oldest, position + 1)
        blocks = view.block_tables[request][positions // self.block_size]
        assert (blocks >= 0).all(), "a visible position has no block"
        slots = blocks * self.block_size + positions % self.block_size
        return _entry(self.memory[group][slots], positions)

    def _check(self, batch: Batch) -> None:
        total = batch.num_tokens
        assert batch.positions.shape == (1, total)
        assert batch.spans[0] == 0
        assert batch.spans[-1] == total
        assert (np.diff(batch.spans) > 0).all()
        arrays = [batch.tokens, batch.positions, batch.spans, batch.context_lens]
        arrays += [batch.logit_rows, batch.prompt_rows]
        for group in batch.groups:
            assert group.slots.shape == (total,)
            assert group.block_tables.shape[0] == group.first_pos.shape[0] == batch.num_requests
            arrays += [group.slots, group.block_tables, group.first_pos]
        assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays)
        for request in range(batch.num_requests):
            first, end = batch.spans[request], batch.spans[request + 1]
            length = int(batch.context_lens[request])
            expected = np.arange(length - (end - first), length)
            assert (batch.positions[0, first:end] == expected).all()

    # ---- the oracle -------------------------------------------------------------------------

    def hidden(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        """Final hidden values after a history of ids, without any cache."""
        return self.logits(history)[:HIDDEN] - np.float32(1.5)

    def logits(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after a history of ids, without any cache."""
        last = len(history) - 1
        hashes = []
        for group in self.groups:
            oldest = 0 if group.window is None else max(0, last - group.window + 1)
            hashes.append(_entry(history[oldest:], np.arange(oldest, last + 1)))
        row = _logits(hashes, self.vocab)
        if self.bad_token is not None and history[-1] == self.bad_token:
            row[3] = np.nan
        return row


class Letters:
    """A detokenizer of one letter per id, for tests of the engine alone."""

    def push(self, token_id: int) -> str:
        return letter(token_id)

    def finish(self) -> str:
        return ""


def letter(token_id: int) -> str:
    return chr(ord("A") + token_id) if token_id < 26 else chr(ord("а") + token_id - 26)


# ---- engines and expectations ---------------------------------------------------------------


def make_engine(
    model: Executor,
    *,
    max_model_len: int = 96,
    max_num_seqs: int = 4,
    budget: int = 32,
    prefill: int | None = None,
    block_size: int = 4,
    num_blocks: Sequence[int] | None = None,
    allocator: Allocator = Allocator.PAGED,
    batching: Batching = Batching.CONTINUOUS,
    eos_ids: frozenset[int] = frozenset(),
    seed: int | None = None,
    max_queue: int = 1000,
    vocabulary: Vocabulary | None = None,
    prefix_caching: bool = False,
    schedule_policy: Policy = Policy.FCFS,
    speculation: Choice = NO_SPECULATION,
    draft: Drafter | None = None,
) -> Engine:
    """An engine over the toy model that checks its invariants after every step."""
    if allocator is Allocator.NONE:
        budget = max(budget, max_model_len)
    pools = plan_pools(
        model.kv_groups,
        KVFormat.F32,
        block_size,
        budget_bytes=None,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_chunk=prefill or budget,
        frees_window=allocator is Allocator.PAGED,
    )
    if num_blocks is not None:
        pools = PoolPlan(tuple(num_blocks), pools.block_bytes)
    config = EngineConfig(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(budget, max_num_seqs),
        max_prefill_tokens=min(prefill or budget, max(budget, max_num_seqs)),
        block_size=block_size,
        kv_format=KVFormat.F32,
        kv_allocator=allocator,
        batching=batching,
        pools=pools,
        num_threads=1,
        seed=seed,
        max_queue=max_queue,
        debug_invariants=True,
        prefix_caching=prefix_caching,
        schedule_policy=schedule_policy,
        speculation=speculation,
    )
    letters = Vocabulary(model.vocab_size, eos_ids, lambda skip: Letters(), letter)
    return Engine(
        model,
        vocabulary or letters,
        config,
        draft=draft,
        identity=lambda: ModelIdentity("toy", "toy's weights", "letters"),
    )


def run_all(engine: Engine, max_steps: int = 5000) -> list[Delta]:
    """Steps until nothing is left to do; fails when that takes too long (a livelock)."""
    deltas: list[Delta] = []
    for _ in range(max_steps):
        if not engine.has_work:
            return deltas
        deltas += engine.step()
    raise AssertionError("the engine does not come to an end")


def expected_tokens(
    model: ToyModel,
    request: Request,
    sample_index: int,
    max_model_len: int,
    constraint: Constraint | None = None,
) -> list[int]:
    """What a sample must be, from the toy's oracle and the sampler alone: no cache, no batch.
    constraint: in its first state."""
    params = request.params
    history = list(request.prompt_token_ids)
    limit = max_model_len
    if params.max_tokens is not None:
        limit = min(limit, len(history) + params.max_tokens)
    state = sampler.make_state(
        params,
        history,
        eos_ids=sorted(request.eos_ids),
        seed=request.seed,
        sample_index=sample_index,
    )
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else request.eos_ids)
    tokens: list[int] = []
    while len(history) < limit:
        row = model.logits(history).reshape(1, -1)
        masks = None if constraint is None else [constraint.mask()]
        drawn = sampler.sample(row, [state], [len(history)], model.vocab, masks=masks)[0]
        if drawn.status is not sampler.RowStatus.OK:
            break
        history.append(drawn.token)
        tokens.append(drawn.token)
        state.accept(drawn.token)
        if constraint is not None:
            constraint.accept(drawn.token)
        if drawn.token in stops or (constraint is not None and constraint.finished):
            break
    return tokens
