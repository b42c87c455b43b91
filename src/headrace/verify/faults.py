"""Faults to plant on purpose: each changes one index or table in the component that owns it.

The engine's faults are small overrides of the class that owns the index (faulty_engine.py); those
of the kernels are fields of recorded ops that are 0 in every real program. Logits are never
touched.
`docs/verify.md` lists each fault with its symptom and the rung that catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.engine.core import Engine
from headrace.errors import UsageError
from headrace.ops.contract import Rows
from headrace.ops.program import Program
from headrace.ops.record import record
from headrace.ops.recording import Attend, LayerNorm, Op, Prepare, RmsNorm, Rope, RowWise
from headrace.verify import faulty_engine as fe

#: Says why a fault cannot exist in a model; None = it can.
Refusal = Callable[[Program], str | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """name: as `--inject` takes it. symptom: how a user would notice. edit: changes recorded ops of
    the native program. edit_fused: changes records that fusion made. engine: the engine class with
    the fault. needs_reference: every native path has the fault alike, so only the comparison with
    torch can show it."""

    name: str
    symptom: str
    edit: Callable[[Op], Op] | None = None
    edit_fused: Callable[[Op], Op] | None = None
    engine: type[Engine] = Engine
    needs_reference: bool = False
    refusal: Refusal = lambda program: None


def _turn_decodes_early(op: Op) -> Op:
    return replace(op, decode_offset=-1) if isinstance(op, Rope) else op


def _see_one_more(op: Op) -> Op:
    return replace(op, last_offset=1) if isinstance(op, Attend) else op


def _read_next_head(op: Op) -> Op:
    return replace(op, head_shift=1) if isinstance(op, Attend) else op


def _prepare_before_norm(op: Op) -> Op:
    """The record in front of the output head prepares its row before the norm, not after it."""
    if not isinstance(op, RowWise) or op.rows is Rows.TOKENS or len(op.parts) < 2:
        return op
    norm, last = op.parts[-2:]
    if isinstance(norm, RmsNorm | LayerNorm) and isinstance(last, Prepare):
        return replace(op, fused=(*op.parts[:-1], replace(last, x=norm.x)))
    return op


def _widen_window(op: Op) -> Op:
    if isinstance(op, Attend) and op.window is not None:
        return replace(op, window=op.window + 1)
    return op


def _without_rope(program: Program) -> str | None:
    ops = record(program).ops()
    return None if any(isinstance(op, Rope) for op in ops) else "it has no rotary embedding"


def _without_head_groups(program: Program) -> str | None:
    if all(group.kv_heads < 2 for group in program.kv_groups):
        return "it has a single KV head"
    return None


def _without_window(program: Program) -> str | None:
    if all(group.window is None for group in program.kv_groups):
        return "none of its layers attends in a window"
    return None


NO_FAULT = Fault("none", "")

#: All faults, by name.
FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "cache-position",
            "the first token is right, later ones are wrong: a decode step writes its key and "
            "value one slot too early",
            engine=fe.CachePositionEngine,
        ),
        Fault(
            "rope-offset",
            "the first token is right, later ones drift: decode steps turn queries and keys by the "
            "position before theirs",
            edit=_turn_decodes_early,
            refusal=_without_rope,
        ),
        Fault(
            "mask-off-by-one",
            "a prompt's text depends on where it was cut: each query sees one position too many",
            edit=_see_one_more,
        ),
        Fault(
            "row-swap",
            "right at batch 1, answers exchanged in a batch: two logit rows are swapped",
            engine=fe.RowSwapEngine,
        ),
        Fault(
            "freed-block",
            "right until another request starts: a block is given back while it is still read",
            engine=fe.FreedBlockEngine,
        ),
        Fault(
            "stale-block-table",
            "right alone, wrong when requests join or leave: a row keeps the table of an earlier "
            "step",
            engine=fe.StaleBlockTableEngine,
        ),
        Fault(
            "kv-head-map",
            "fluent nonsense from the first token: query heads read the next KV head",
            edit=_read_next_head,
            needs_reference=True,
            refusal=_without_head_groups,
        ),
        Fault(
            "dropped-chunk",
            "long prompts lose a part: a chunk is counted as computed and never is",
            engine=fe.DroppedChunkEngine,
        ),
        Fault(
            "window-edge",
            "wrong once a text is longer than the window: queries see one position beyond it",
            edit=_widen_window,
            refusal=_without_window,
        ),
        Fault(
            "skipped-norm",
            "the right words with the wrong probabilities, until fusion is switched off: the fused "
            "record before the output head rounds the row from before its norm",
            edit_fused=_prepare_before_norm,
        ),
        Fault(
            "noise-key",
            "a seeded request changes with its neighbours: noise is keyed with the row, not with "
            "the position",
            engine=fe.NoiseKeyEngine,
        ),
        Fault(
            "long-match",
            "right from nothing, wrong where a part of the prompt was cached: a match is one "
            "position too long",
            engine=fe.LongMatchEngine,
        ),
        Fault(
            "saved-neighbour",
            "right until the next start, then wrong where a prefix was restored: a block is saved "
            "in the place of its neighbour",
            engine=fe.SavedNeighbourEngine,
        ),
        Fault(
            "kept-draft",
            "right without speculation, wrong after a wrong guess: the key and value of a rejected "
            "draft stay",
            engine=fe.KeptDraftEngine,
        ),
    )
}


def find_fault(name: str, program: Program) -> Fault:
    """The fault of that name. Raises UsageError when there is none, or when it cannot exist in this
    model."""
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"There is no fault {name!r}; known are {', '.join(FAULTS)}.")
    reason = fault.refusal(program)
    if reason is not None:
        raise UsageError(f"The fault {name} cannot exist in this model: {reason}.")
    return fault
