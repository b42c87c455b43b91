"""The exact rungs: two ways to compute the same thing must give the same bits.

Each function takes a Subject and returns a RungResult; each counts how often the event it is about
really happened (chunk borders, preemptions, shared blocks …), and none of them looks inside a
kernel: they run real engines and compare logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.native import core
from headrace.verify.guesses import from_draft_model, from_ngrams
from headrace.verify.probe import GREEDY, Run, run_requests
from headrace.verify.result import Rows, RungResult, difference
from headrace.verify.reuse import hits, restored, shared
from headrace.verify.subject import Subject
from headrace.verify.workload import SEGMENT

Rung = Callable[[Subject], RungResult]

_ONE = GREEDY.replace(max_tokens=1)
_SEEDED = SamplingParams(
    temperature=0.9, top_k=60, top_p=0.95, max_tokens=16, ignore_eos=True, seed=1
)


def uncached(subject: Subject) -> RungResult:
    """Token by token on the cache = everything recomputed from position 0, at edge positions."""
    work = subject.workload
    cached = run_requests(
        *subject.engine(work.few, max_num_batched_tokens=1, max_num_seqs=1), [work.text]
    )
    engine, probe = subject.engine(kv_allocator="none")
    prompts = [work.text[: p + 1] for p in work.few]
    recomputed = run_requests(engine, probe, prompts, _ONE)
    expected = {(0, 0, p): recomputed.rows[i, 0, p] for i, p in enumerate(work.few)}
    error = difference(expected, cached.rows)
    error = max(error, difference(_common(subject.whole.rows, cached.rows), cached.rows))
    return RungResult.judge(
        "uncached = cached", error, len(expected), f"positions {list(work.few)}"
    )


def chunked(subject: Subject) -> RungResult:
    """One chunk = chunks of 7, 16, 17 and 512 tokens."""
    whole = subject.whole
    error, borders = 0.0, 0
    for chunk in (7, 16, 17, 512):
        engine, probe = subject.engine(
            subject.workload.edges, max_num_batched_tokens=chunk, max_num_seqs=1
        )
        run = run_requests(engine, probe, [subject.workload.text])
        borders += -(-len(subject.workload.text) // chunk) - 1
        error = max(error, difference(whole.rows, run.rows))
    return RungResult.judge("whole = chunked", error, borders, "chunks of 7, 16, 17, 512")


def batched(subject: Subject) -> RungResult:
    """Each prompt by itself = all of them in one ragged batch."""
    shorts = subject.workload.shorts
    engine, probe = subject.engine()
    mixed = _Counter(lambda engine: len(engine.scheduler.running) > 1)
    run = run_requests(engine, probe, shorts, between=mixed)
    error = _against_alone(subject, run)
    return RungResult.judge("batch 1 = batch n", error, mixed.count, f"{len(shorts)} prompts")


def neighbours(subject: Subject) -> RungResult:
    """A seeded, sampled request by itself = amid neighbours that join, finish and are aborted."""
    shorts = subject.workload.shorts
    prompt, others = shorts[-1], shorts
    # There from the start, with row 0 and the first blocks; its row is later the prompt's.
    early_prompt = [*prompt[7:], *prompt[:7]]
    alone = run_requests(*subject.engine(), [prompt], _SEEDED)
    engine, probe = subject.engine()
    events = 0

    def disturb(engine: Engine, requests: list[Request]) -> None:
        nonlocal events
        if engine.num_steps % 3 == 1 and engine.num_steps < 16:
            number = engine.num_steps // 3 % len(others)
            params = _SEEDED.replace(seed=None, max_tokens=2 + number)
            requests.append(engine.add(list(others[number]), params))
            events += 1
        if engine.num_steps % 5 == 4 and len(requests) > 2:
            engine.abort(requests[-1])
            events += 1

    early = _SEEDED.replace(seed=7, max_tokens=12)
    amid = run_requests(engine, probe, [early_prompt, prompt], [early, _SEEDED], between=disturb)
    error = difference(alone.rows, amid.of(1))
    if alone.tokens[0] != amid.tokens[1]:
        error = max(error, float("inf"))
    return RungResult.judge("alone = with neighbours", error, events, "seeded sampling")


def shuffled(subject: Subject) -> RungResult:
    """Contiguous KV = blocks scattered over the pool, with blocks of 16 and of 32."""
    error, jumps = 0.0, 0
    contiguous = run_requests(
        *subject.engine(subject.workload.edges, kv_allocator="contiguous"),
        [subject.workload.text],
    )
    for block_size in (16, 32):
        engine, probe = subject.engine(subject.workload.edges, block_size=block_size)
        for pool in engine.manager.pools:
            pool.scatter(seed=block_size)

        def count_jumps(engine: Engine, requests: list[Request]) -> None:
            nonlocal jumps
            for sequence in engine.scheduler.running:
                if sequence.blocks is not None:
                    table = np.array(sequence.blocks.held(0))
                    jumps = max(jumps, int((np.diff(table) != 1).sum()))

        run = run_requests(engine, probe, [subject.workload.text], between=count_jumps)
        error = max(error, difference(contiguous.rows, run.rows))
    return RungResult.judge("contiguous = paged", error, jumps, "scattered blocks of 16 and 32")


def preempted(subject: Subject) -> RungResult:
    """Never preempted = thrown out and recomputed in a tiny pool: long prompts once, whose
    recomputation is long, and short ones again and again."""
    shorts = subject.workload.shorts
    error, events = 0.0, 0
    for prompt, steps in ((shorts[-1], 1), (shorts[0], 3)):
        prompts = [[*prompt[i:], *prompt[:i]] for i in range(3)]
        params = GREEDY.replace(max_tokens=steps * subject.block_size + 3)
        blocks = 3 * -(-len(prompt) // subject.block_size) + 1
        tiny = (blocks,) * len(subject.program.kv_groups)
        straight = run_requests(*subject.engine(), prompts, params)
        run = run_requests(*subject.engine(num_blocks=tiny), prompts, params)
        events += sum(request.num_preemptions for request in run.requests)
        error = max(error, difference(straight.rows, run.rows))
    return RungResult.judge("straight = preempted", error, events, f"{events} preemptions")


def paused(subject: Subject) -> RungResult:
    """Straight through = paused and resumed in turns beside others that go on, in a pool that
    holds all of them and in one that does not."""
    prompt = subject.workload.shorts[:4][-1]  # a tile and one more token
    prompts = [[*prompt[i:], *prompt[:i]] for i in range(3)]
    params = _SEEDED.replace(n=2)
    straight = run_requests(*subject.engine(), prompts, params)
    error, events = 0.0, 0

    def take_turns(engine: Engine, requests: list[Request]) -> None:
        nonlocal events
        if engine.num_steps % 3 and engine.has_work:
            return
        for request in requests:
            engine.resume(request)
        turn = engine.num_steps // 3 % len(requests)
        if any(not request.finished for request in requests[:turn] + requests[turn + 1 :]):
            engine.pause(requests[turn])
            events += requests[turn].paused

    blocks = 5 * -(-(len(prompt) + 2 * 16) // subject.block_size) // 2
    tiny = (blocks,) * len(subject.program.kv_groups)
    for pool in (None, tiny):
        run = run_requests(*subject.engine(num_blocks=pool), prompts, params, between=take_turns)
        error = max(error, difference(straight.rows, run.rows))
        if run.tokens != straight.tokens:
            error = float("inf")
    return RungResult.judge("straight = paused", error, events, f"{events} pauses")


def forked(subject: Subject) -> RungResult:
    """Samples that share their prompt's blocks and copy on write = each computed by itself."""
    prompt = subject.workload.shorts[-1]
    params = _SEEDED.replace(n=3, seed=5)
    engine, probe = subject.engine()
    run = run_requests(engine, probe, [prompt], params)
    error = 0.0
    for sample, tokens in enumerate(run.tokens[0]):
        history = prompt + tokens[:-1]
        edges = range(len(prompt) - 1, len(history))
        solo = run_requests(*subject.engine(edges), [history], _ONE)
        expected = {(0, sample, p): row for (_, _, p), row in solo.rows.items() if p >= len(prompt)}
        error = max(error, difference(expected, run.rows))
    return RungResult.judge(
        "alone = forked", error, engine.num_copied_blocks, "3 samples of one prompt"
    )


def static(subject: Subject) -> RungResult:
    """Continuous batching = static batching, two at a time."""
    engine, probe = subject.engine(batching="static", max_num_seqs=2)
    waited = _Counter(lambda engine: bool(engine.scheduler.waiting))
    run = run_requests(engine, probe, subject.workload.shorts, between=waited)
    return RungResult.judge("continuous = static", _against_alone(subject, run), waited.count)


def threads(subject: Subject) -> RungResult:
    """One worker thread = two and three."""
    error, events = 0.0, 0
    base = _on(subject, num_threads=1)
    for count in (2, 3):
        error = max(error, difference(base, _on(subject, num_threads=count)))
        events += 1
    error = max(error, difference(_common(subject.whole.rows, base), base))
    return RungResult.judge("one thread = n", error, events, "1, 2 and 3 threads")


def isas(subject: Subject) -> RungResult:
    """Every instruction-set level of this machine gives the bits of the lowest."""
    levels = list(core().available_isas())
    base = _on(subject, isa=levels[0])
    error, events = 0.0, len(levels) - 1
    for level in levels[1:]:
        error = max(error, difference(base, _on(subject, isa=level)))
    if len(levels) == 1:
        # Nothing to compare with on such a machine; the level itself against the engine's default.
        error, events = difference(_common(subject.whole.rows, base), base), 1
    return RungResult.judge("instruction sets agree", error, events, ", ".join(levels))


def fused(subject: Subject) -> RungResult:
    """Fused records = one kernel per op, for a prompt in one step and in small ones, and for single
    tokens, of which workers share a row."""
    text = subject.workload.shorts[-1]
    error, records = 0.0, 0
    for chunk in (len(text), 7):
        runs = []
        for fusion in (True, False):
            model = subject.model(chunk, fusion=fusion)
            records += model.num_fused
            engine = subject.engine(
                range(len(text)), model=model, max_num_batched_tokens=chunk, max_num_seqs=1
            )
            runs.append(run_requests(*engine, [text]).rows)
        error = max(error, difference(runs[1], runs[0]))
    return RungResult.judge("fused = unfused", error, records, f"{records // 2} fused records")


def _on(subject: Subject, **options: int | str) -> Rows:
    """The first tiles and segments of the long text on a model with other options."""
    text = subject.workload.text[: SEGMENT + 3 * subject.block_size]
    edges = [p for p in subject.workload.edges if p < len(text)]
    config = subject.config()
    model = subject.model(config.max_num_batched_tokens, **options)
    return run_requests(*subject.engine(edges, model=model), [text], GREEDY).rows


def _common(rows: Rows, other: Rows) -> Rows:
    """The rows that both have and that stand for the same tokens (positions inside the prompt)."""
    return {key: row for key, row in rows.items() if key in other}


def _against_alone(subject: Subject, run: Run) -> float:
    return max(
        difference(subject.alone(i).rows, run.of(i)) for i in range(len(subject.workload.shorts))
    )


class _Counter:
    """Counts the steps after which a condition holds."""

    def __init__(self, condition: Callable[[Engine], bool]) -> None:
        self._condition = condition
        self.count = 0

    def __call__(self, engine: Engine, requests: list[Request]) -> None:
        self.count += self._condition(engine)


#: The exact rungs in order, by the name they report.
EXACT_RUNGS: Mapping[str, Rung] = {
    "uncached = cached": uncached,
    "whole = chunked": chunked,
    "batch 1 = batch n": batched,
    "alone = with neighbours": neighbours,
    "contiguous = paged": shuffled,
    "straight = preempted": preempted,
    "straight = paused": paused,
    "alone = forked": forked,
    "cold = prefix hit": hits,
    "cold = restored": restored,
    "alone = shared": shared,
    "plain = n-gram drafts": from_ngrams,
    "plain = draft model": from_draft_model,
    "continuous = static": static,
    "one thread = n": threads,
    "instruction sets agree": isas,
    "fused = unfused": fused,
}
