"""The exact rungs of the prefix tree: what was found in it gives the bits of what is computed.

Engines of the ladder have no tree unless a rung asks for one, so every other rung computes
everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.sizing import ceil_div
from headrace.verify.probe import GREEDY, Probe, Run, run_requests
from headrace.verify.result import RungResult, difference
from headrace.verify.subject import Subject
from headrace.verify.workload import TILE

_SEEDED = SamplingParams(
    temperature=0.9, top_k=60, top_p=0.95, max_tokens=8, ignore_eos=True, seed=11
)
_BOTH = (GREEDY, _SEEDED)


def shared_length(subject: Subject) -> int:
    """Tokens of a prefix that crosses two tiles and every window, a multiple of the block size."""
    size = subject.block_size
    windows = [g.window or 0 for g in subject.program.kv_groups]
    length = max(2 * TILE + 2 * size, *(w + 3 * size for w in windows))
    return min(length, len(subject.workload.text) - 2 * size) // size * size


def turns(subject: Subject) -> list[list[int]]:
    """Prompts in an order in which each finds something of the ones before it: the same again,
    one token less and one more, one that leaves inside a block, one that goes on."""
    text, length = subject.workload.text, shared_length(subject)
    inside = length - subject.block_size // 2 - 1
    other = text[:TILE]
    return [
        text[:length],
        text[:length],
        text[: length - 1],
        text[: length + 1],
        text[:inside] + other[: subject.block_size + 3],
        text[: length + subject.block_size + 5],
    ]


def hits(subject: Subject) -> RungResult:
    """A prompt computed from nothing = found in the tree: whole, at block borders and beside them,
    left inside a block, after a part of it was evicted; greedy and seeded."""
    error, cached = 0.0, 0
    engine, probe = subject.engine(enable_prefix_caching=True)
    for number, prompt in enumerate(turns(subject)):
        params = _BOTH[number % 2]
        warm, request = _one(engine, probe, prompt, params)
        cached += request.num_cached_tokens
        error = max(error, _against_cold(subject, prompt, params, warm))
    again, evicted, again_error = _reentered(subject, turns(subject)[0])
    detail = f"{cached + again} cached tokens, {evicted} evicted before"
    events = cached if again and evicted else 0
    return RungResult.judge("cold = prefix hit", max(error, again_error), events, detail)


def _reentered(subject: Subject, prompt: list[int]) -> tuple[int, int, float]:
    """The prompt again, after others have taken a part of its blocks: what was still there, what
    had been evicted, and the error."""
    size = subject.block_size
    room = ceil_div(len(prompt) + (GREEDY.max_tokens or 0), size)
    blocks = (room + room // 2,) * len(subject.program.kv_groups)
    engine, probe = subject.engine(num_blocks=blocks, enable_prefix_caching=True)
    _one(engine, probe, prompt[: len(prompt) // 2], GREEDY)
    _one(engine, probe, prompt, GREEDY)
    _one(engine, probe, [*prompt[9 : len(prompt) * 3 // 4], *prompt[:9]], GREEDY)
    tree = engine.cache.tree
    assert tree is not None
    evicted = tree.stats.num_evicted_tokens
    warm, request = _one(engine, probe, prompt, GREEDY)
    error = _against_cold(subject, prompt, GREEDY, warm)
    return request.num_cached_tokens, evicted, error


def restored(subject: Subject) -> RungResult:
    """Prompts computed from nothing = found in a tree that was saved to disk and restored by
    another engine with fresh memory."""
    prompts = turns(subject)
    error, cached = 0.0, 0
    with TemporaryDirectory() as name:
        engine, probe = subject.engine(enable_prefix_caching=True)
        for prompt in prompts[::5]:
            _one(engine, probe, prompt, GREEDY)
        saved = engine.cache.save(Path(name))
        engine, probe = subject.engine(enable_prefix_caching=True)
        report = engine.cache.restore(Path(name))
    for prompt, params in zip(prompts[1:5], _BOTH * 2, strict=True):
        warm, request = _one(engine, probe, prompt, params)
        cached += request.num_cached_tokens
        error = max(error, _against_cold(subject, prompt, params, warm))
    detail = f"{cached} cached tokens, {saved.num_bytes / 2**20:.1f} MiB saved"
    events = cached if report.num_positions else 0
    return RungResult.judge("cold = restored", error, events, report.reason or detail)


def shared(subject: Subject) -> RungResult:
    """Many requests at once that share a prefix, some of them whole prompts = the same without any
    sharing: all in one step, and in chunks."""
    text, length = subject.workload.text, shared_length(subject)
    windowed = any(g.window for g in subject.program.kv_groups)
    length = length if windowed else TILE + 5
    prompts = [
        text[:length] + text[i // 3 * 3 : i // 3 * 3 + 1 + i // 3 * 4] for i in range(subject.many)
    ]
    params = [_BOTH[i % 2].replace(seed=i // 3) for i in range(subject.many)]
    alone = run_requests(*subject.engine(max_num_seqs=16), prompts, params)
    error, cached = 0.0, 0
    for chunk in (subject.max_model_len, 96):
        run = run_requests(
            *subject.engine(
                max_num_seqs=16, max_num_batched_tokens=chunk, enable_prefix_caching=True
            ),
            prompts,
            params,
        )
        cached += sum(request.num_cached_tokens for request in run.requests)
        error = max(error, difference(alone.rows, run.rows))
        if run.tokens != alone.tokens:
            error = float("inf")
    return RungResult.judge(
        "alone = shared", error, cached, f"{cached} cached tokens of {subject.many} requests"
    )


def _one(
    engine: Engine, probe: Probe, prompt: Sequence[int], params: SamplingParams
) -> tuple[Run, Request]:
    """Runs one more prompt to its end; its rows and tokens as those of request 0."""
    request = engine.add(list(prompt), params)
    while engine.has_work:
        engine.step()
    tokens = [[list(request.generations[0].token_ids)]]
    rows = Run(dict(probe.rows_seen)).of(request.request_id)
    return Run(rows, tokens), request


def _against_cold(
    subject: Subject, prompt: Sequence[int], params: SamplingParams, warm: Run
) -> float:
    cold = run_requests(*subject.engine(), [list(prompt)], params)
    error = difference(cold.rows, warm.rows)
    return error if cold.tokens == warm.tokens else float("inf")
