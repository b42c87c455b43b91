"""Shell: what every page has: header, navigation, colours, one line for what went wrong, one timer.

A page is built by a function that takes a `Frame`; everything it does later, it does through that,
so that an error becomes a sentence and nothing runs on for a page that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nicegui import Client, ui

from headrace.errors import HeadraceError
from headrace.ui.backend import Backend, BackendError
from headrace.ui.door.here import asks_from_here
from headrace.ui.facts.lab_desk import LabDesk
from headrace.ui.facts.planning import Answers

_LOG = logging.getLogger("headrace.ui")
_HERE = Path(__file__).parent

#: Seconds between two ticks of a page's one timer: nothing on a page changes more often.
TICK_S = 0.25
#: Ticks between two looks at the server's health.
HEALTH_TICKS = 20


@dataclass(frozen=True, slots=True)
class Page:
    """name: of the file and the tests; path: below the prefix; icon: of Material Icons."""

    name: str
    path: str
    title: str
    icon: str
    build: Callable[[Frame], Awaitable[None]]


@dataclass(eq=False)
class Frame:
    """One open page in one browser. backend: the server, under this session's key. lab: the one
    place where experiments are run; plans: those made lately."""

    page: Page
    backend: Backend
    client: Client
    lab: LabDesk
    plans: Answers
    is_admitted: bool = False  # has logged in, so it can log out
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _ticks: list[tuple[int, Callable[[], Any]]] = field(default_factory=list)
    _starts: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    _count: int = 0

    @property
    def may_start_work(self) -> bool:
        """Whether this visitor may start processes here: who is logged in, or sits at this
        machine."""
        if self.is_admitted:
            return not self.backend.is_closed
        return asks_from_here(self.client.request)

    # ---- what a page may use ---------------------------------------------------------------------

    def say(self, sentence: str) -> None:
        """Shows one sentence at the top of the page, instead of the one before."""
        self._notice.text = sentence
        self._notice_row.set_visibility(True)

    def be_quiet(self) -> None:
        """Takes the sentence away."""
        self._notice_row.set_visibility(False)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Does work in the background; it is cancelled with the page. A HeadraceError is shown;
        anything else is logged, and shown as a fault of ours."""
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def once(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs work when a browser is there: whoever only fetches the page costs nothing more."""
        self._starts.append(work)

    def every(self, ticks: int, action: Callable[[], Any]) -> None:
        """Calls (or awaits) action every so many ticks of 0.25 s, as long as the page is open. An
        action that is still under way is not started again."""
        self._ticks.append((max(ticks, 1), action))

    # ---- the shell itself ----------------------------------------------------------------------

    @contextlib.contextmanager
    def build(self, pages: tuple[Page, ...]) -> Iterator[None]:
        """Header above, the page's own content inside the context."""
        ui.add_head_html(f"<style>{_read('shell.css')}</style><script>{_read('theme.js')}</script>")
        ui.link("To the content", "#content").classes("hr-skip")
        with ui.element("header").classes("hr-top"):
            ui.link("Headrace", "/").classes("hr-brand")
            with ui.element("nav").classes("hr-nav").props('aria-label="Pages"'):
                for page in pages:
                    with ui.link(target=page.path) as link:
                        ui.icon(page.icon, size="18px").props("aria-hidden=true")
                        ui.label(page.title)
                    if page is self.page:
                        link.props("aria-current=page")
            self._server = ui.label("…").classes("hr-server").props("role=status")
            ui.button(icon="brightness_auto", color=None).props("flat round dense").classes(
                "hr-theme"
            ).on("click", js_handler="() => hrTheme.next()")
            if self.is_admitted:
                ui.button(icon="logout", color=None).props(
                    'flat round dense aria-label="Log out"'
                ).on("click", js_handler=_LOG_OUT)
        with ui.element("div").classes("hr-notice").props("role=alert") as self._notice_row:
            self._notice = ui.label().style("flex: 1")
            icon_button("close", "Dismiss").on_click(self.be_quiet)
        self._notice_row.set_visibility(False)
        with ui.element("main").classes("hr-page").props("id=content"):
            yield
        self.every(HEALTH_TICKS, self._look_at_server)
        ui.timer(TICK_S, self._tick)
        self.client.on_delete(self._leave)

    def _tick(self) -> None:
        if self._count == 0:
            for start in (self._look_at_server, *self._starts):
                self.run(start())
        self._count += 1
        for ticks, action in self._ticks:
            if self._count % ticks == 0:
                result = action()
                if asyncio.iscoroutine(result):
                    self.run(result)

    async def _look_at_server(self) -> None:
        try:
            self._show(await self.backend.model_name())
        except BackendError as error:
            self._show({"loading": "loading…", "gone": "not reachable", "key": "log in again"}.get(
                error.kind, "in trouble"))  # fmt: skip

    def _show(self, text: str) -> None:
        if self._server.text != text:
            self._server.text = text

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        with self.client:
            try:
                await work
            except HeadraceError as error:
                self.say(str(error))
            except asyncio.CancelledError:
                raise
            except Exception:
                _LOG.exception("a page failed")
                if not self.client.is_deleted:
                    self.say("Something went wrong inside the dashboard; its log says what.")

    def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def icon_button(icon: str, label: str) -> ui.button:
    """A round button with a name for those who do not see the icon."""
    return ui.button(icon=icon, color=None).props(f'flat round dense aria-label="{label}"')


#: A form, so that the answer's cookie and redirection work as for the login.
_LOG_OUT = """() => {
  const form = Object.assign(document.createElement("form"),
    {method: "post", action: window.path_prefix + "/logout"});
  document.body.append(form);
  form.submit();
}"""


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
