"""Chat: a conversation, streamed; stop, edit and resend, try again; what every answer cost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from nicegui import ui

from headrace.ui.backend import BackendError
from headrace.ui.components.controls import off_at, seed, slider, whole_number
from headrace.ui.components.flow import Flow
from headrace.ui.facts.prose import to_html
from headrace.ui.facts.talk import Account, Conversation, Settings, Turn
from headrace.ui.shell import Frame, icon_button

#: Enter sends, except with Shift, while a word is being composed, and where there is no keyboard.
_ENTER_SENDS = """(event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (matchMedia("(pointer: coarse)").matches) return;
  event.preventDefault();
  emit();
}"""
_HINT = (
    "Ask the model something. Every answer comes with its account: how fast it was, how near to "
    "this machine's limit, and what the cache gave."
)
_ESCAPE = '(event) => { if (event.key === "Escape") emit(); }'


async def build(frame: Frame) -> None:
    """The page."""
    _Chat(frame).build()


class _Chat:
    """One conversation in one open page."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._settings = Settings()
        self._talk = Conversation()
        self._answering: asyncio.Task[None] | None = None
        self._flow: Flow | None = None

    def build(self) -> None:
        with ui.element("div").classes("hr-split"):
            with ui.element("section").classes("hr-stack").props('aria-label="Conversation"'):
                self._turns = (
                    ui.element("div").classes("hr-stack").props('role=log aria-label="Messages"')
                )
                Flow().set_visibility(False)  # so that the browser knows what one is
                self._show_hint()
                self._build_composer()
            with ui.element("aside").classes("hr-card").props('aria-label="Settings"'):
                self._build_settings()
        self._frame.every(1, self._flush)

    def _build_composer(self) -> None:
        with ui.element("div").classes("hr-card hr-composer"):
            self._box = ui.textarea(placeholder="Say something…").classes("hr-box")
            self._box.props('autogrow outlined dense input-style="max-height: 30vh" autofocus')
            self._box.props('aria-label="Your message"')
            self._box.on("keydown", self._send, js_handler=_ENTER_SENDS)
            self._box.on("keydown", self._stop, js_handler=_ESCAPE)
            with ui.element("div").classes("hr-row"):
                ui.label("Enter sends, Shift+Enter begins a line").classes("hr-soft hr-keys")
                ui.button("New", on_click=self._clear, color=None).props("flat no-caps")
                self._stop_button = ui.button("Stop", on_click=self._stop, color=None)
                self._stop_button.props("outline no-caps icon=stop").set_visibility(False)
                self._send_button = ui.button("Send", on_click=self._send)
                self._send_button.props("no-caps unelevated icon=send")

    def _build_settings(self) -> None:
        s = self._settings

        def setter(name: str) -> Callable[[object], None]:
            return lambda value: setattr(s, name, value)

        ui.label("Settings").classes("hr-title")
        system = ui.textarea("System prompt", on_change=lambda e: setter("system")(e.value or ""))
        system.props("outlined dense autogrow").style("width: 100%")
        slider("Temperature", 0.0, 2.0, 0.05, s.temperature, setter("temperature"),
               off_at(0.0, "greedy"))  # fmt: skip
        slider("Top-p", 0.05, 1.0, 0.01, s.top_p, setter("top_p"), off_at(1.0))
        slider("Top-k", 0, 200, 1, s.top_k, lambda k: setter("top_k")(int(k)), off_at(0))
        slider("Min-p", 0.0, 0.5, 0.01, s.min_p, setter("min_p"), off_at(0.0))
        whole_number("Most tokens", s.max_tokens, 1, 1 << 20,
                     lambda n: setter("max_tokens")(n or 512))  # fmt: skip
        seed("Seed (empty: another every time)", setter("seed"))

    # ---- what a person does ------------------------------------------------------------------

    def _send(self) -> None:
        text = (self._box.value or "").strip()
        if not text or self._is_busy:
            return
        self._box.value = ""
        self._say(text)

    def _say(self, text: str) -> None:
        self._talk.say(text)
        self._show_turn(len(self._talk.turns) - 1)
        self._answer()

    def _resend(self, index: int, text: str) -> None:
        if self._is_busy or not text.strip():
            return
        self._rewind(index)
        self._say(text.strip())

    def _again(self, index: int) -> None:
        if not self._is_busy:
            self._rewind(index)
            self._answer()

    def _stop(self) -> None:
        if self._answering is not None:
            self._answering.cancel()

    async def _clear(self) -> None:
        self._stop()
        if self._answering is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._answering])
        self._rewind(0)
        self._show_hint()

    @property
    def _is_busy(self) -> bool:
        return self._answering is not None and not self._answering.done()

    # ---- answering ---------------------------------------------------------------------------

    def _answer(self) -> None:
        self._frame.be_quiet()
        self._answering = self._frame.run(self._generate())
        self._show_busy(True)

    async def _generate(self) -> None:
        account, pieces = Account(), list[str]()
        with self._turns, ui.element("article").classes("hr-turn hr-answer") as article:
            article.props('aria-label="Answer" aria-busy=true')
            self._flow = Flow()
            live = ui.label("waiting for the first token…").classes("hr-soft")
        began = time.monotonic()
        try:
            await self._stream(account, pieces, live, began)
        except BackendError as error:
            account.note = "interrupted"
            self._frame.say(str(error))
        except asyncio.CancelledError:
            account.note = "stopped"
        finally:
            self._flow = None
            self._answering = None
            if not self._frame.client.is_deleted:
                self._show_busy(False)
                article.delete()
                text = "".join(pieces)
                if text or account.note != "interrupted":
                    self._talk.answered(text, account)
                    self._show_turn(len(self._talk.turns) - 1)

    async def _stream(
        self, account: Account, pieces: list[str], live: ui.label, began: float
    ) -> None:
        body = {
            "messages": self._talk.messages(self._settings.system),
            **self._settings.to_body(),
            "return_token_ids": True,
        }
        first = 0.0
        shown = 0.0
        async with contextlib.aclosing(
            self._frame.backend.stream("/v1/chat/completions", body)
        ) as events:
            async for event in events:
                if text := account.read(event):
                    pieces.append(text)
                    if self._flow is not None:
                        self._flow.add(text)
                now = time.monotonic()
                if not first and account.num_tokens:
                    first, account.ttft_s = now, now - began
                elif account.num_tokens > 1 and now > first and account.finish_reason is None:
                    account.tok_per_s = (account.num_tokens - 1) / (now - first)
                if account.num_tokens and now - shown >= 0.25:
                    shown = now
                    live.text = " · ".join(account.facts())

    def _flush(self) -> None:
        if self._flow is not None:
            self._flow.flush()

    # ---- showing -----------------------------------------------------------------------------

    def _show_hint(self) -> None:
        with self._turns:
            ui.label(_HINT).classes("hr-soft")  # fmt: skip

    def _show_busy(self, busy: bool) -> None:
        self._stop_button.set_visibility(busy)
        self._send_button.set_visibility(not busy)

    def _rewind(self, index: int) -> None:
        """Forgets turns, here and on the page; the hint goes with the first."""
        self._talk.rewind(index)
        children = list(self._turns.default_slot.children)
        for child in children[index:]:
            child.delete()

    def _show_turn(self, index: int) -> None:
        turn = self._talk.turns[index]
        if index == 0:
            self._turns.clear()
        with self._turns:
            if turn.role == "user":
                self._show_question(index, turn)
            else:
                self._show_answer(index, turn)

    def _show_question(self, index: int, turn: Turn) -> None:
        with ui.element("article").classes("hr-turn hr-question") as article:
            article.props('aria-label="You"')
            text = ui.label(turn.text).classes("hr-flow")
            edit = icon_button("edit", "Edit and send again").classes("hr-tool")

            def begin() -> None:
                text.set_visibility(False)
                edit.set_visibility(False)
                article.classes(add="hr-editing")
                with editor:
                    fill()

            def end() -> None:
                text.set_visibility(True)
                edit.set_visibility(True)
                article.classes(remove="hr-editing")
                editor.clear()

            edit.on_click(begin)
            editor = ui.element("div").classes("hr-stack")

            def fill() -> None:  # only now: a hidden field cannot tell how high its text is
                box = ui.textarea(value=turn.text).props("outlined dense autogrow autofocus")
                box.props('aria-label="Edit your message"').style("width: 100%")
                with ui.element("div").classes("hr-row"):
                    send = ui.button("Send again", on_click=lambda: self._resend(index, box.value))
                    send.props("no-caps unelevated dense")
                    ui.button("Cancel", on_click=end, color=None).props("flat no-caps dense")

    def _show_answer(self, index: int, turn: Turn) -> None:
        account = turn.account or Account()
        with ui.element("article").classes("hr-turn hr-answer").props('aria-label="Answer"'):
            if account.thinking:
                with ui.element("details").classes("hr-soft"):
                    with ui.element("summary"):
                        ui.label("Its thoughts").style("display: inline")
                    ui.label(account.thinking).classes("hr-flow")
            ui.html(to_html(turn.text) or "<p><em>(nothing)</em></p>").classes("hr-prose")
            with ui.element("div").classes("hr-row"):
                with ui.element("div").classes("hr-facts").style("flex: 1"):
                    for fact in account.facts():
                        ui.label(fact)
                again = icon_button("refresh", "Answer again").classes("hr-tool")
                again.on_click(lambda: self._again(index))
