"""The output items of a Responses answer as they grow: text, reasoning, function calls.

One item is open at a time; what does not belong to it closes it and opens the next. Every step
gives the events a stream tells of it; a whole answer takes the items and forgets the events.

    added ─ part added ─ delta … delta ─ done ─ part done ─ item done
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

from headrace.server.render.answer import dump, json_text


class _Kind(NamedTuple):
    """type: of the item; id: prefix of its name; part: type of its one part, "" = it has none;
    event: its deltas' name up to the last dot; value: what the whole text is called."""

    type: str
    id: str
    part: str
    event: str
    value: str


_MESSAGE = _Kind("message", "msg", "output_text", "response.output_text", "text")
_REASONING = _Kind("reasoning", "rs", "reasoning_text", "response.reasoning_text", "text")
_CALL = _Kind("function_call", "fc", "", "response.function_call_arguments", "arguments")


class OutputItems:
    """done: the finished items, ready for JSON. Mutated by every method."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._sequence = 0
        self._kind: _Kind | None = None
        self._id = ""
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._call: dict[str, str] = {}
        self._head = self._tail = ""  # of a delta, around its text

    def event(self, kind: str, fields: dict[str, Any]) -> bytes:
        """One event with the next sequence number."""
        body = dump({"type": kind, **fields, "sequence_number": self._next()})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)

    # ---- what the answer is made of ---------------------------------------------------------

    def text(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """Text for the reader."""
        return self._enter(_MESSAGE) + self._delta(text, logprobs)

    def reasoning(self, text: str) -> bytes:
        """Text that the model wrote to itself."""
        return self._enter(_REASONING) + self._delta(text)

    def call(self, call_id: str, name: str) -> bytes:
        """A function call begins."""
        closed = self.close()
        self._call = {"call_id": call_id, "name": name}
        return closed + self._enter(_CALL)

    def arguments(self, fragment: str) -> bytes:
        """The next part of the open call's arguments."""
        assert self._kind is _CALL
        return self._delta(fragment)

    def finish(self, complete: bool) -> bytes:
        """The end of the answer; one without anything is an empty message. complete: not cut."""
        events = b"" if self.done or self._kind is not None else self._enter(_MESSAGE)
        return events + self.close("completed" if complete else "incomplete")

    # ---- items ------------------------------------------------------------------------------

    def _enter(self, kind: _Kind) -> bytes:
        """Makes sure that an item of this kind is open."""
        if self._kind is kind:
            return b""
        events = self.close()
        self._kind, self._id = kind, f"{kind.id}_{secrets.token_hex(12)}"
        self._texts, self._logprobs = [], []
        place = f'"item_id":"{self._id}","output_index":{len(self.done)}'
        content = ',"content_index":0' if kind.part else ""
        name = f"{kind.event}.delta"
        self._head = f'event: {name}\ndata: {{"type":"{name}",{place}{content},"delta":'
        self._tail = (
            ',"logprobs":[],"sequence_number":' if kind is _MESSAGE else (',"sequence_number":')
        )
        item = {"output_index": len(self.done), "item": self._item("in_progress", None)}
        events += self.event("response.output_item.added", item)
        if kind.part:
            events += self.event("response.content_part.added", self._place(part=self._part("")))
        return events

    def _delta(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        self._texts.append(text)
        if logprobs:
            self._logprobs += logprobs
            fields = self._place(delta=text, logprobs=logprobs)
            return self.event("response.output_text.delta", fields)
        if not text:
            return b""
        return f"{self._head}{json_text(text)}{self._tail}{self._next()}}}\n\n".encode()

    def close(self, status: str = "completed") -> bytes:
        """Ends the open item, if there is one."""
        kind = self._kind
        if kind is None:
            return b""
        text = "".join(self._texts)
        whole: dict[str, Any] = {kind.value: text}
        if kind is _MESSAGE:
            whole["logprobs"] = self._logprobs
        elif kind is _CALL:
            whole["name"] = self._call["name"]
        events = self.event(f"{kind.event}.done", self._place(**whole))
        if kind.part:
            events += self.event("response.content_part.done", self._place(part=self._part(text)))
        item = self._item(status, text)
        events += self.event(
            "response.output_item.done", {"output_index": len(self.done), "item": item}
        )
        self.done.append(item)
        self._kind = None
        return events

    def _place(self, **fields: Any) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": len(self.done)}
        assert self._kind is not None
        if self._kind.part:
            place["content_index"] = 0
        return place | fields

    def _item(self, status: str, text: str | None) -> dict[str, Any]:
        """The item as it stands; text None = it has just begun."""
        kind = self._kind
        item: dict[str, Any] = {"id": self._id, "type": kind.type if kind else "", "status": status}
        content = [] if text is None else [self._part(text)]
        if kind is _MESSAGE:
            return item | {"role": "assistant", "content": content}
        if kind is _REASONING:
            return item | {"summary": [], "content": content}
        return item | self._call | {"arguments": text or ""}

    def _part(self, text: str) -> dict[str, Any]:
        if self._kind is _MESSAGE:
            return {
                "type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs,
            }  # fmt: skip
        return {"type": "reasoning_text", "text": text}

    def _next(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number
