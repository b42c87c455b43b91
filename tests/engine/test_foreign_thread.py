"""An engine has no home thread: it may be built in one and driven by others, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any

from toy import make_engine, run_all

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.outputs import Delta
from headrace.engine.params import SamplingParams
from headrace.ops.native import NativeModel
from small_program import VOCAB, small_program

PARAMS = SamplingParams(max_tokens=30, temperature=0.9, logprobs=2, n=2)


def new_engine() -> Engine:
    native = NativeModel(small_program(), num_threads=2)
    return make_engine(native, block_size=16, budget=24, max_num_seqs=6, max_model_len=160)


def add_all(engine: Engine) -> list[Request]:
    return [
        engine.add([(i * 7 + k) % VOCAB for k in range(5 + 20 * i)], PARAMS.replace(seed=i))
        for i in range(5)
    ]


def facts(request: Request) -> list[Any]:
    return [(o.token_ids, o.logprobs, o.finish_reason) for o in request.output().outputs]


def test_every_step_in_another_thread() -> None:
    engine = new_engine()
    expected = add_all(engine)
    run_all(engine)
    with ThreadPoolExecutor(3) as threads:  # each takes what is next; we wait for it
        engine = new_engine()
        requests = threads.submit(add_all, engine).result()
        while engine.has_work:
            threads.submit(engine.step).result()
    assert [facts(r) for r in requests] == [facts(r) for r in expected]


def test_one_thread_owns_the_engine_and_others_send_it_commands() -> None:
    """As a server does: add, abort, pause and resume reach the engine between its steps."""
    expected_engine = new_engine()
    expected = add_all(expected_engine)
    run_all(expected_engine)

    engine = new_engine()
    commands: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
    deltas: list[Delta] = []

    def own() -> None:
        open_for_more = True
        while open_for_more or engine.has_work:
            while not commands.empty() or (not engine.has_work and open_for_more):
                command = commands.get()
                if command is None:
                    open_for_more = False
                else:
                    command()
            deltas.extend(engine.step())

    owner = Thread(target=own)
    owner.start()
    requests: list[Request] = []
    extra: list[Request] = []
    commands.put(lambda: requests.extend(add_all(engine)))
    for i in range(20):
        engine.check([1, 2, 3], PARAMS)  # may be called beside a running step
        commands.put(lambda: extra.append(engine.add([1, 2, 3], PARAMS)))
        commands.put(lambda i=i: deltas.extend(engine.abort(extra[i], "gone")))  # type: ignore[misc]
        commands.put(lambda i=i: engine.pause(requests[i % 5]))  # type: ignore[misc]
        commands.put(lambda i=i: engine.resume(requests[i % 5]))  # type: ignore[misc]
    commands.put(None)
    owner.join(60)
    assert not owner.is_alive()
    assert [facts(r) for r in requests] == [facts(r) for r in expected]
    assert all(r.finished for r in extra)
    ends = [(d.request_id, d.index) for d in deltas if d.finish_reason is not None]
    assert len(ends) == len(set(ends)) == 5 * 2 + 20
