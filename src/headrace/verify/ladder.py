"""The ladder: runs the rungs in order, keeps going when one fails, and says what a failure means.

Exact rungs first (they need nothing but the native core), then the comparison with the reference,
which needs torch; without it those rungs are listed as not run.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.verify.exact import EXACT_RUNGS, Rung
from headrace.verify.result import RungResult
from headrace.verify.subject import Subject

#: What a failing rung suggests, by its name (docs/verify.md, spec section 15).
SYMPTOMS: Mapping[str, str] = {
    "uncached = cached": "the first token is right and later ones are wrong: look at where new "
    "keys and values are written, and at the position RoPE turns by",
    "whole = chunked": "the text depends on how a prompt was cut: look at the mask at chunk "
    "borders, and at chunks counted as computed",
    "batch 1 = batch n": "right alone, wrong in a batch: look at the order of rows, and at blocks "
    "that two requests hold",
    "alone = with neighbours": "a request changes when others come and go: look at block tables "
    "kept from an earlier step, at freed blocks, and at what the sampler's noise is keyed with",
    "contiguous = paged": "the place of a block matters: look at slots and block tables",
    "straight = preempted": "a request changes when it is thrown out and resumed: look at what is "
    "kept from before",
    "straight = paused": "a request changes when it is paused and resumed: look at blocks that it "
    "kept while others ran, and at those it lost",
    "alone = forked": "samples of one prompt disturb each other: look at copy-on-write",
    "cold = prefix hit": "a prompt that was cached gives another text: look at the length of the "
    "match, at blocks written while shared, and at what a window still holds",
    "cold = restored": "a prompt whose blocks came from disk gives another text: look at which "
    "block went to which place, and at what the stamp leaves out",
    "alone = shared": "requests that share a prefix disturb each other: look at blocks shared "
    "before they are written, and at copies made too early",
    "plain = n-gram drafts": "guessing changes the text: look at rejected drafts counted as "
    "computed, and at rows, positions and counts of drafts",
    "plain = draft model": "guessing changes the text: look at rejected drafts counted as "
    "computed, and at workers and states shared with the draft model",
    "continuous = static": "the order of admission matters: look at the order of rows",
    "one thread = n": "threads change bits: they share a reduction, or race",
    "instruction sets agree": "one instruction-set level computes something else",
    "fused = unfused": "a record that stands for several ops computes something else than they do: "
    "look at the rules of fusion, at what a record keeps local, and at missing barriers",
    "native = reference": "every native path agrees on something wrong: look at head maps, masks, "
    "RoPE and norms; the op-by-op rung names the op",
    "op by op": "the op named computes something else than its definition",
}
#: Rungs that compare with torch, in order.
REFERENCE_RUNGS = ("native = reference", "op by op")
_NO_TORCH = "torch is not installed; install it with: pip install 'headrace[torch]'"


@dataclass(frozen=True, slots=True)
class Report:
    """rungs: results in order. not_run: name → reason of rungs that were left out. conditions:
    what was compared where. passed: every rung that ran passed; what did not run is not claimed."""

    rungs: tuple[RungResult, ...]
    not_run: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.rungs) and all(rung.passed for rung in self.rungs)

    @property
    def failed(self) -> list[RungResult]:
        return [rung for rung in self.rungs if not rung.passed]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "passed": self.passed,
            "rungs": [rung.to_dict() for rung in self.rungs],
            "not_run": [{"name": n, "reason": why} for n, why in self.not_run.items()],
            "conditions": dict(self.conditions),
        }


def has_reference() -> bool:
    """Whether torch can be imported; does not import it."""
    return importlib.util.find_spec("torch") is not None


def rungs_of(*, reference: bool) -> Iterator[tuple[str, Rung]]:
    """The rungs in order; importing the reference ones imports torch."""
    yield from EXACT_RUNGS.items()
    if reference:
        from headrace.verify.op_by_op import op_by_op
        from headrace.verify.reference import native_is_reference

        yield "native = reference", native_is_reference
        yield "op by op", op_by_op


def run_ladder(
    subject: Subject,
    *,
    reference: bool | None = None,
    only: Callable[[str], bool] = lambda name: True,
    on_start: Callable[[str], None] = lambda name: None,
    on_result: Callable[[RungResult], None] = lambda result: None,
) -> Report:
    """Climbs the whole ladder; a rung that raises has failed and the next one is tried.

    reference: run the torch rungs (None = when torch is there). only: which rungs, by name.
    on_start, on_result: told before and after each rung.
    """
    available = has_reference() if reference is None else reference
    results = []
    for name, rung in rungs_of(reference=available):
        if not only(name):
            continue
        on_start(name)
        started = time.perf_counter()
        try:
            result = rung(subject)
        except Exception as error:
            result = RungResult.crashed(name, name in EXACT_RUNGS, error)
        result = replace(result, seconds=time.perf_counter() - started)
        results.append(result)
        on_result(result)
    reason = _NO_TORCH if reference is None else "left out by request"
    not_run = {} if available else {n: reason for n in REFERENCE_RUNGS if only(n)}
    return Report(tuple(results), not_run, subject.conditions())
