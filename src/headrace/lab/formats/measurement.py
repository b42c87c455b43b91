"""Every format of one model: its size, how far its predictions move, how fast it runs.

Knows not what follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.bench.cases import Case
from headrace.bench.cases import Kind as CaseKind
from headrace.bench.measure import run_case
from headrace.bench.setup import Settings, make_config
from headrace.engine.core import Engine
from headrace.engine.model import native_executor, vocabulary_of
from headrace.lab.formats.number_formats import Moved, Sizes, compare, in_format, sizes
from headrace.lab.lab import Lab
from headrace.models.load import LoadedModel
from headrace.verify.faults import NO_FAULT
from headrace.verify.probe import GREEDY, run_requests
from headrace.verify.subject import Subject

Logits = npt.NDArray[np.float32]

QUICK = ("f32", "bf16", "q8_0", "q6_k", "q5_0", "q4_1", "q4_0", "q4_k", "q2_k", "file")
FULL = ("f32", "bf16", "f16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_0", "q4_k",
        "q3_k", "q2_k", "file")  # fmt: skip
REFERENCE = "f32"
#: Tokens of a chunk of text; its second half is scored.
CHUNK = 256
PROMPT, DEPTH, STEPS = 256, 128, 32
#: Of the reference's logits, which are kept.
_MOST_LOGIT_BYTES = 400_000_000
_CASES = (Case(CaseKind.PREFILL, PROMPT, 0), Case(CaseKind.DECODE, 0, STEPS, depth=DEPTH))


@dataclass(slots=True)
class Format:
    """One format. moved: per chunk. pp, tg: tokens per second, one per repetition."""

    name: str
    model: LoadedModel
    sizes: Sizes
    subject: Subject
    moved: list[Moved]
    pp: list[float]
    tg: list[float]


def subject_of(lab: Lab, model: LoadedModel, *, faulty: bool = False) -> Subject:
    subject = lab.subject(fault=lab.fault if faulty else NO_FAULT)
    subject.program = model
    return subject


def measure_quality(lab: Lab) -> list[Format]:
    source = lab.open().program
    chunks = _chunks(lab, source.vocab_size)
    found, reference = [], None
    names = QUICK if lab.quick else FULL
    for number, name in enumerate(names):
        lab.tell(name, number / len(names))
        model = in_format(source, name, lab.threads)
        subject = subject_of(lab, model)
        logits = _logits(subject, chunks)
        reference = logits if name == REFERENCE else reference
        assert reference is not None, "the reference comes first"
        targets = [np.array(chunk[CHUNK // 2 + 1 :]) for chunk in chunks]
        moved = [compare(r, o, t) for r, o, t in zip(reference, logits, targets, strict=True)]
        found.append(Format(name, model, sizes(model), subject, moved, [], []))
    return found


def _chunks(lab: Lab, vocab_size: int) -> list[list[int]]:
    affordable = _MOST_LOGIT_BYTES // (4 * vocab_size * (CHUNK // 2))
    count = max(3, min(8 if lab.quick else 24, affordable))
    return lab.passages(count, CHUNK)


def _logits(subject: Subject, chunks: Sequence[list[int]]) -> list[Logits]:
    """Of the positions that predict each chunk's second half, [127, ids] per chunk."""
    positions = range(CHUNK // 2, CHUNK - 1)
    engine, probe = subject.engine(positions)
    found = []
    for chunk in chunks:
        probe.rows_seen.clear()
        run = run_requests(engine, probe, [chunk], GREEDY.replace(max_tokens=1))
        request = run.requests[0].request_id
        rows = [run.rows[request, 0, p] for p in positions]
        found.append(np.stack(rows)[:, : subject.num_ids])
    return found


def measure_speed(lab: Lab, found: Sequence[Format]) -> None:
    """PP and TG of all formats in turns, so that a slow moment hits all of them."""
    opened = lab.open()
    engines, pool = [], None
    for own in found:
        model = replace(opened, program=own.model)
        config = make_config(model, _CASES, Settings(), lab.threads)
        executor = native_executor(own.model, config, weights=own.subject.weights, pool=pool)
        pool = pool or executor.pool
        engines.append(Engine(executor, vocabulary_of(model), config))
    repetitions = 5 if lab.quick else 12
    for repetition in range(repetitions + 1):  # the first warms up
        lab.rates()
        for number, (own, engine) in enumerate(zip(found, engines, strict=True)):
            done = (repetition + number / len(found)) / (repetitions + 1)
            lab.tell(f"{own.name}, repetition {repetition} of {repetitions}", done)
            pp, tg = (run_case(engine, case) for case in _CASES)
            if repetition:
                own.pp.append(pp.num_tokens / pp.seconds)
                own.tg.append(tg.num_tokens / tg.seconds)
