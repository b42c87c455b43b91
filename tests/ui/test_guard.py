"""The dashboard's door: who gets in, and what is refused to whom. All but one without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest
from browser import Browser, showing
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from live_server import API_KEY, serving

pytestmark = pytest.mark.ui

KEY_ENV = {"HEADRACE_API_KEY": API_KEY}


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """A dashboard over a server that wants a key."""
    with serving("smollm2-135m", env=KEY_ENV) as server, showing(server.url) as url:
        yield url


@pytest.fixture
def guest(locked: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=locked, follow_redirects=False, timeout=20) as client:
        yield client


def _log_in(client: httpx.Client, key: str = API_KEY, target: str = "/") -> httpx.Response:
    return client.post("login", data={"key": key, "next": target})


def _socket(url: str, *, cookie: str = "", origin: str | None = None, page: str = "x") -> int:
    """The status that a websocket to the pages' own path gets; 101 = accepted."""
    parts = urlsplit(url)
    address = (
        f"ws://{parts.netloc}/ui/_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id={page}"
    )
    headers = {"Cookie": cookie} if cookie else {}
    try:
        with connect(address, origin=origin, additional_headers=headers, open_timeout=10):  # type: ignore[arg-type]
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


def _cookie(answer: httpx.Response) -> str:
    return answer.headers["set-cookie"].split(";")[0]


def test_without_a_session_nothing_is_shown(guest: httpx.Client, locked: str) -> None:
    page = guest.get("")
    assert page.status_code == 303
    assert page.headers["location"] == "/ui/login?next=%2F"
    for path in ("_nicegui/3.18.0/static/nicegui.js", "_nicegui/auto", "lab-figure/a/b.png",
                 "_nicegui_ws/socket.io/?EIO=4&transport=polling", "no-such-page"):  # fmt: skip
        assert guest.get(path).status_code == 401, path
    assert _socket(locked) == 403


def test_the_cookie_of_a_login(guest: httpx.Client, locked: str) -> None:
    answer = _log_in(guest, target="/inspector")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/inspector"
    flags = answer.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert "path=/ui" in flags
    assert API_KEY not in answer.headers["set-cookie"]
    assert guest.get("inspector").status_code == 200
    assert API_KEY not in guest.get("inspector").text
    assert _socket(locked, cookie=_cookie(answer)) == 101


def test_over_tls_the_cookie_is_secure(guest: httpx.Client) -> None:
    """As told by a proxy on this machine."""
    data = {"key": API_KEY, "next": "/"}
    answer = guest.post("login", data=data, headers={"x-forwarded-proto": "https"})
    assert "secure" in answer.headers["set-cookie"].lower()


def test_log_out_ends_pages_and_sockets(guest: httpx.Client, locked: str) -> None:
    cookie = _cookie(_log_in(guest))
    assert guest.get("").status_code == 200
    assert guest.post("logout").status_code == 303
    guest.cookies.clear()
    assert guest.get("", headers={"cookie": cookie}).status_code == 303
    assert _socket(locked, cookie=cookie) == 403


@pytest.mark.parametrize(
    "target",
    ["https://example.com/", "//example.com/", "/\\example.com", "/../v1/models", "javascript:x",
     "/login", "/ui/", "/nowhere", "/\r\nx: y"],
)  # fmt: skip
def test_a_login_leads_to_our_pages_only(guest: httpx.Client, target: str) -> None:
    assert _log_in(guest, target=target).headers["location"] == "/ui/"
    shown = guest.get("login", params={"next": target}).text
    assert re.search(r'name="next" value="/"', shown)


def test_a_page_belongs_to_its_session(guest: httpx.Client, locked: str) -> None:
    mine = _cookie(_log_in(guest))
    page = re.search(r"client_id\W+([0-9a-f-]{36})", guest.get("").text)
    assert page is not None
    guest.cookies.clear()
    other = _cookie(_log_in(guest))
    assert _socket(locked, cookie=other, page=page[1]) == 403
    assert _socket(locked, cookie=other, page="") == 403, "it could name any page later"
    assert _socket(locked, cookie=mine, page=page[1]) == 101


def test_a_browser_logs_in_and_out(locked: str) -> None:
    """A form of ours: browsers decide by the page's headers what Origin they send with it."""
    with Browser() as browser:
        browser.driver.get(f"{locked}serving")
        browser.one("#key").send_keys("wrong")
        browser.button("Log in").click()
        browser.wait(lambda: "does not know this key" in browser.text(), "the refusal")
        browser.one("#key").send_keys(API_KEY)
        browser.button("Log in").click()
        browser.wait(lambda: browser.text(".hr-server") == "smollm2-135m", "the page")
        browser.button("Log out").click()
        browser.wait(lambda: browser.all("#key"), "the login page")
        browser.must_be_clean(allowed="401 (Unauthorized)")


@pytest.mark.parametrize("origin", ["http://example.com", "null", "http://127.0.0.1:1", "http://["])
def test_another_site_is_refused(guest: httpx.Client, locked: str, origin: str) -> None:
    cookie = _cookie(_log_in(guest))
    assert _socket(locked, cookie=cookie, origin=origin) == 403
    headers = {"origin": origin}
    assert guest.get("_nicegui_ws/socket.io/?EIO=4&transport=polling",
                     headers=headers).status_code == 403  # fmt: skip
    assert guest.post("login", data={"key": API_KEY}, headers=headers).status_code == 403
    assert guest.post("logout", headers=headers).status_code == 403
    assert guest.get("").status_code == 200
    fetch = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert guest.get("", headers=fetch).status_code == 403


def test_our_own_origin_is_let_in(guest: httpx.Client, locked: str) -> None:
    parts = urlsplit(locked)
    own = f"{parts.scheme}://{parts.netloc}"
    assert _socket(locked, cookie=_cookie(_log_in(guest)), origin=own) == 101


@pytest.mark.parametrize("host", ["example.com", "example.com:80", "127.0.0.1.example.com", ""])
def test_a_name_that_somebody_pointed_here_is_refused(dashboard: str, host: str) -> None:
    """Also where no key is wanted: so no other page can reach this one through DNS."""
    answer = httpx.get(dashboard, headers={"host": host})
    assert answer.status_code in (400, 421)
    assert "client_id" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8080", "a.localhost"])
def test_own_names_are_let_in(dashboard: str, host: str) -> None:
    assert httpx.get(dashboard, headers={"host": host}).status_code == 200


def test_what_every_answer_forbids_the_browser(dashboard: str) -> None:
    headers = httpx.get(dashboard, headers={"x-forwarded-prefix": "//example.com"}).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "example.com" not in httpx.get(dashboard, headers={"x-forwarded-prefix": "//example.com"}).text  # fmt: skip  # noqa: E501


def test_wrong_keys_are_few_a_minute() -> None:
    """Ours stays out, too, once somebody at this address has guessed five times."""
    with (
        serving("smollm2-135m", env=KEY_ENV) as server,
        showing(server.url) as url,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        assert _log_in(client, "ключ").status_code == 401
        assert _log_in(client, "").status_code == 401
        for _ in range(3):
            refused = _log_in(client, "a-wrong-key")
            assert refused.status_code == 401
            assert "does not know this key" in refused.text
            assert "set-cookie" not in refused.headers
        late = _log_in(client)
        assert late.status_code == 429
        assert int(late.headers["retry-after"]) > 0
        assert client.post("login", content=b"key=" + b"x" * 100_000).status_code == 413


def test_nobody_logs_in_at_a_server_that_looks_at_no_key() -> None:
    """As one with too many connections, or a proxy before it that is out of order."""

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with (
            showing(f"http://127.0.0.1:{server.server_port}") as url,
            httpx.Client(base_url=url, timeout=20) as client,
        ):
            answer = _log_in(client, "a-wrong-key")
            assert answer.status_code == 502
            assert "set-cookie" not in answer.headers
        server.shutdown()


def test_what_does_not_exist_is_no_open_page() -> None:
    """More of it than pages may be open; then a page still opens."""
    with showing("http://127.0.0.1:9") as url, httpx.Client(base_url=url, timeout=20) as client:
        for path in ("nowhere", "_nicegui/nowhere", "lab-figure/a"):
            for _ in range(70):
                assert client.get(path).status_code == 404
        assert client.get("sampling").status_code == 200


def test_a_login_while_the_server_is_away_says_so() -> None:
    with showing("http://127.0.0.1:9") as url, httpx.Client(base_url=url, timeout=20) as client:
        answer = _log_in(client)
        assert answer.status_code == 502
        assert "cannot be asked now" in answer.text
        assert client.get("").status_code == 200  # the page says that nobody is there
