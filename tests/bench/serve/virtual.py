"""Time that passes only when nobody has anything to do, and a server that follows a script."""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from headrace.bench.serve.client import Client
from headrace.bench.serve.target import Target

T = TypeVar("T")
#: (seconds after the request, bytes to send then); None closes the connection.
Script = list[tuple[float, bytes | None]]


class _VirtualSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def clock_ns(self) -> int:
        """The loop's time, free of the rounding of its sums."""
        return round(self._virtual.now * 1e6) * 1000


class _ScriptedTransport(asyncio.Transport):
    """Answers each request written to it with the bytes of a script."""

    def __init__(
        self, loop: VirtualLoop, protocol: asyncio.Protocol, script: Callable[[bytes], Script]
    ) -> None:
        super().__init__()
        self._loop, self._protocol, self._script = loop, protocol, script
        self._closed = False

    def write(self, data: Any) -> None:
        begin = self._loop.time()
        # One timer per instant: a loop keeps no order between timers of the same time.
        for delay, group in itertools.groupby(self._script(bytes(data)), lambda step: step[0]):
            self._loop.call_at(begin + delay, self._send, [piece for _, piece in group])

    def _send(self, pieces: list[bytes | None]) -> None:
        for piece in pieces:
            if self._closed:
                return
            if piece is None:
                self.abort()
            else:
                self._protocol.data_received(piece)

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)


def run_virtual(
    script: Callable[[bytes], Script], use: Callable[[Client], Coroutine[Any, Any, T]]
) -> T:
    """Runs `use` with a client whose server follows `script` (request bytes → what comes when)."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = cast(VirtualLoop, runner.get_loop())

        async def connect(make: Callable[[], asyncio.Protocol]) -> None:
            protocol = make()
            protocol.connection_made(_ScriptedTransport(loop, protocol, script))

        client = Client(Target(False, "scripted", 80), loop.clock_ns, cast(Any, connect))
        return runner.run(use(client))


def response(data: bytes, status: str = "200 OK") -> bytes:
    """A whole answer that is no stream."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = response(b'{"data": [{"id": "scripted"}]}')
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """A chunk with one event."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return chunk(b"data: " + data + b"\n\n")


def text(piece: str, finish: str | None = None, usage: int | None = None) -> dict[str, Any]:
    """A chunk of /v1/completions. usage: completion tokens so far."""
    found: dict[str, Any] = {"choices": [{"index": 0, "text": piece, "finish_reason": finish}]}
    return found if usage is None else found | {"usage": {"completion_tokens": usage}}


def delta(finish: str | None = None, usage: int | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    found: dict[str, Any] = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    return found if usage is None else found | {"usage": {"completion_tokens": usage}}


def usage_chunk(tokens: int, prompt: int = 8) -> dict[str, Any]:
    """The chunk at the end: no choices, only usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return {"choices": [], "usage": usage}


def stream(timed: Sequence[tuple[float, Any]], end_s: float | None = None) -> Script:
    """Events at their times, [DONE] and the end of the body with the last, or later."""
    last = timed[-1][0] if end_s is None else end_s
    script: Script = [(0.0, HEAD)]
    script += [(at, event(value)) for at, value in timed]
    return [*script, (last, event(b"[DONE]") + END)]


def scripted(answer: Callable[[int], Script]) -> Callable[[bytes], Script]:
    """A server that lists one model and answers the i-th completion with answer(i)."""
    counted = iter(range(1 << 20))

    def script(request: bytes) -> Script:
        return [(0.0, MODELS)] if request.startswith(b"GET") else answer(next(counted))

    return script
