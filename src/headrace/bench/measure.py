"""One case on a real engine: the seconds a user would wait, scheduling, sampling, detokenizing and
stop checks included.

Every measurement starts from an empty prefix cache (but for the case's depth) and goes through
`Engine.add` and `Engine.step`. Tokens are drawn greedily, ends of text are ignored, so the number
of tokens is what the case says. Model load is not included; `warm_up` is a run like any other whose
result nobody keeps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.cases import Case, Kind, prompt_ids
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.errors import CapacityError, HeadraceError

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a case. seconds: of num_tokens tokens. ttft_s, tpot_s: mean over the sequences.

    Of a batch also its parts: prefill_s until every sequence had its first token (early ones
    already decode meanwhile), and of the steps in which all sequences decoded, their number,
    seconds and the mean number of positions in the cache before them."""

    seconds: float
    num_tokens: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    prefill_s: float | None = None
    decode_s: float = 0.0
    num_decode_steps: int = 0
    decode_start: int = 0


def run_case(engine: Engine, case: Case) -> Sample:
    """Runs it once. Raises CapacityError when the KV memory does not hold all sequences at once,
    HeadraceError when a request fails."""
    ids = [
        prompt_ids(engine.vocabulary.num_ids, case.context, sequence)
        for sequence in range(case.batch)
    ]
    engine.cache.clear()
    try:
        if case.depth and case.kind is not Kind.DECODE:
            _fill(engine, case, ids)
        match case.kind:
            case Kind.PREFILL:
                return _prefill(engine, case, ids[0])
            case Kind.DECODE:
                return _decode(engine, case, ids[0])
            case Kind.BATCH:
                return _batch(engine, case, ids)
    finally:
        for request in engine.requests():  # after Ctrl-C or an error
            engine.abort(request)
        engine.cache.clear()


def _fill(engine: Engine, case: Case, ids: Sequence[list[int]]) -> None:
    """Puts the first `depth` tokens of every sequence into the cache."""
    for own in ids:
        engine.add(own[: case.depth], GREEDY.replace(max_tokens=1))
    while engine.has_work:
        engine.step()


def _prefill(engine: Engine, case: Case, ids: list[int]) -> Sample:
    begin = time.perf_counter()
    request = engine.add(ids[: case.depth + case.num_prompt], GREEDY.replace(max_tokens=1))
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - begin
    _check([request], case)
    return Sample(seconds, case.num_prompt, ttft_s=seconds)


def _decode(engine: Engine, case: Case, ids: list[int]) -> Sample:
    """The prompt and its first token are not measured, the num_output steps after them are."""
    request = engine.add(ids[: case.start], GREEDY.replace(max_tokens=case.num_output + 1))
    drawn = request.generations[0].token_ids
    while not drawn and engine.has_work:
        engine.step()
    begin = time.perf_counter()
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - begin
    _check([request], case, extra=1)
    return Sample(seconds, case.num_output, tpot_s=seconds / case.num_output)


def _batch(engine: Engine, case: Case, ids: Sequence[list[int]]) -> Sample:
    params = GREEDY.replace(max_tokens=case.num_output)
    begin = time.perf_counter()
    requests = [engine.add(own[: case.depth + case.num_prompt], params) for own in ids]
    waiting = [request.generations[0].token_ids for request in requests]
    while engine.has_work and waiting:
        engine.step()
        waiting = [tokens for tokens in waiting if not tokens]
    prefilled = time.perf_counter()
    lead = sum(len(r.generations[0].token_ids) for r in requests) / case.batch
    full, num_full = prefilled, 0  # end and number of the steps in which all sequences decode
    while engine.has_work:
        deltas = engine.step()
        if len(deltas) == case.batch:
            full, num_full = time.perf_counter(), num_full + 1
    end = time.perf_counter()
    _check(requests, case)
    metrics = [request.output().metrics for request in requests]
    first = [m.time_to_first_token_s or 0.0 for m in metrics]
    rest = [m.decode_s or 0.0 for m in metrics]
    return Sample(
        end - begin,
        case.batch * (case.num_prompt + case.num_output),
        ttft_s=sum(first) / case.batch,
        tpot_s=sum(rest) / case.batch / (case.num_output - 1) if case.num_output > 1 else None,
        prefill_s=prefilled - begin,
        decode_s=full - prefilled,
        num_decode_steps=num_full,
        decode_start=round(case.start + lead) - 1,
    )


def _check(requests: Sequence[Request], case: Case, extra: int = 0) -> None:
    """The run was what the case says."""
    for request in requests:
        [generation] = request.generations
        if generation.error is not None:
            raise HeadraceError(f"{case.label}: a request failed: {generation.error}")
        if request.num_preemptions:
            raise CapacityError(
                f"{case.label}: the KV memory does not hold all sequences at once; raise "
                f"--kv-cache-memory or lower -npl, -p or -n."
            )
        wanted = case.num_output + extra if case.num_output else 1
        assert len(generation.token_ids) == wanted, "another number of tokens than asked for"
        cached = 0 if case.kind is Kind.DECODE else case.depth
        if request.num_cached_tokens != cached:
            raise HeadraceError(
                f"{case.label}: {request.num_cached_tokens} instead of {cached} positions were in "
                f"the cache ({request.cache_note or 'no reason is known'})."
            )
