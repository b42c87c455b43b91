"""Sessions: they end in time, and with them the key."""

from __future__ import annotations

import asyncio

import pytest

from headrace.ui.backend import Backend, BackendError
from headrace.ui.door import sessions
from headrace.ui.door.sessions import MAX_FAILURES, Attempts, Sessions

URL = "http://127.0.0.1:9"


def test_a_session_ends_at_log_out_and_its_backend_refuses() -> None:
    async def life() -> None:
        all_sessions, backend = Sessions(URL), Backend(URL, "key")
        name = all_sessions.start(backend)
        assert len(name) >= 43
        assert all_sessions.find(name) is backend
        assert all_sessions.find(name + "x") is None
        all_sessions.end(name)
        assert all_sessions.find(name) is None
        await all_sessions.close()
        with pytest.raises(BackendError, match="log in again"):
            await backend.get("/health")

    asyncio.run(life())


@pytest.mark.parametrize(
    ("age_s", "idle_s", "lives"),
    [(0, 0, True), (sessions.LIFE_S - 9, 0, True), (sessions.LIFE_S + 9, 0, False),
     (9, sessions.IDLE_S + 9, False), (9, sessions.IDLE_S - 9, True)],
)  # fmt: skip
def test_a_session_ends_in_time(age_s: float, idle_s: float, lives: bool) -> None:
    async def life() -> None:
        all_sessions, backend = Sessions(URL), Backend(URL, "key")
        name = all_sessions.start(backend)
        backend.used -= idle_s
        next(iter(all_sessions._sessions.values())).since -= age_s
        assert (all_sessions.find(name) is backend) == lives
        await all_sessions.close()

    asyncio.run(life())


def test_the_one_longest_unused_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)

    async def life() -> None:
        all_sessions = Sessions(URL)
        names = [all_sessions.start(Backend(URL)) for _ in range(3)]
        found = all_sessions.find(names[1])
        assert found is not None
        found.used -= 60
        all_sessions.start(Backend(URL))
        assert [all_sessions.find(name) is not None for name in names] == [True, False, True]
        await all_sessions.close()

    asyncio.run(life())


def test_guesses_of_one_address_do_not_lock_another_out() -> None:
    attempts = Attempts()
    for _ in range(MAX_FAILURES):
        assert attempts.wait_s("a") == 0
        attempts.failed("a")
    assert 0 < attempts.wait_s("a") <= sessions.WINDOW_S
    assert attempts.wait_s("b") == 0
    attempts.took_back("a")
    assert attempts.wait_s("a") == 0
    for number in range(sessions.MAX_FAILURES_OF_ALL):
        attempts.failed(f"c{number}")
    assert attempts.wait_s("b") > 0
