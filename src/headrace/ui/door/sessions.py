"""Sessions: who has logged in, and the key that each may use. Knows no HTTP.

A session's id is 256 random bits that only the browser's cookie holds; here lies its hash. The key
stays in this process's memory, inside a Backend, and goes with the session.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import deque
from dataclasses import dataclass

from headrace.ui.backend import Backend

#: A session ends so long after the login, and so long after its last use, seconds. An open page
#: asks the server for something every few seconds, which is use.
LIFE_S = 12 * 3600.0
IDLE_S = 2 * 3600.0
#: More sessions than this, and the one longest unused ends.
MAX_SESSIONS = 256
#: Logins that may fail in WINDOW_S, from one address and from all together.
WINDOW_S = 60.0
MAX_FAILURES = 5
MAX_FAILURES_OF_ALL = 30


#: How often it is looked which have ended, seconds.
SWEEP_S = 60.0


@dataclass(slots=True)
class Session:
    """One browser that has logged in. since: time.monotonic()."""

    backend: Backend
    since: float


class Sessions:
    """All sessions over one server. visitor: the backend of whoever has none; it has no key."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.visitor = Backend(url)
        self._sessions: dict[str, Session] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def start(self, backend: Backend) -> str:
        """Takes a backend whose key the server knows; returns the id for the cookie."""
        self._expire()
        if len(self._sessions) >= MAX_SESSIONS:
            self._drop(min(self._sessions, key=lambda name: self._sessions[name].backend.used))
        session_id = secrets.token_urlsafe(32)
        self._sessions[_name(session_id)] = Session(backend, time.monotonic())
        return session_id

    def find(self, session_id: str) -> Backend | None:
        """The backend of a living session."""
        self._expire()
        session = self._sessions.get(_name(session_id))
        return session.backend if session else None

    def end(self, session_id: str) -> None:
        """Logs out; pages of that session find the server closed to them."""
        name = _name(session_id)
        if name in self._sessions:
            self._drop(name)

    async def sweep(self) -> None:
        """Ends sessions in time, also when nobody comes; until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self._expire()

    async def close(self) -> None:
        for name in list(self._sessions):
            self._drop(name)
        await asyncio.gather(*self._closing, self.visitor.close())

    def _expire(self) -> None:
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if now - session.since > LIFE_S or now - session.backend.used > IDLE_S:
                self._drop(name)

    def _drop(self, name: str) -> None:
        task = asyncio.ensure_future(self._sessions.pop(name).backend.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Attempts:
    """How often logins have failed lately, and whether another may be tried."""

    def __init__(self) -> None:
        self._failures: deque[tuple[float, str]] = deque()

    def wait_s(self, address: str) -> float:
        """Seconds until this address may try again; 0 = now."""
        now = time.monotonic()
        while self._failures and now - self._failures[0][0] > WINDOW_S:
            self._failures.popleft()
        mine = [when for when, whose in self._failures if whose == address]
        waits = [0.0]
        if len(mine) >= MAX_FAILURES:
            waits.append(mine[-MAX_FAILURES] + WINDOW_S - now)
        if len(self._failures) >= MAX_FAILURES_OF_ALL:
            waits.append(self._failures[-MAX_FAILURES_OF_ALL][0] + WINDOW_S - now)
        return max(waits)

    def failed(self, address: str) -> None:
        """Counts a try; `took_back` when it turns out well."""
        self._failures.append((time.monotonic(), address))

    def took_back(self, address: str) -> None:
        for index in range(len(self._failures) - 1, -1, -1):
            if self._failures[index][1] == address:
                del self._failures[index]
                return


def _name(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()
