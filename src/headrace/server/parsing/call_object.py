"""Reads one call, `{"name": …, "arguments": {…}}`, as it arrives, whatever the order of its keys.

`parameters` is taken for `arguments`. The arguments are passed on as the model wrote them, as soon
as it is certain what is called. Braces around the object that are doubled, as some templates show
them by mistake, are read as one. Knows nothing about what stands around the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container

from headrace.server.parsing.json_value import JsonValue, escape_raw

_SPACE = re.compile(r"[ \t\n\r]*")
#: All that an object without tags around it may hold and still be taken for a call.
_USUAL_KEYS = ("name", "arguments", "parameters", "type", "id")

# What is expected next in the object itself.
_OPEN, _FIRST_KEY, _KEY, _COLON, _VALUE, _NEXT, _CLOSE = range(7)
# What the string or value being read is. HELD: arguments that are no object.
_IS_KEY, _IS_NAME, _IS_ARGUMENTS, _IS_HELD, _IS_OTHER = range(5)


class CallObject:
    """One call object. done: it has ended. failed: it is no call to any of the known functions.

    name: of the function, once read. complete: the call can be made (the name is known and the
    arguments have ended), even if the object is never closed.
    """

    __slots__ = (
        "_buffer",
        "_doubled",
        "_expected",
        "_have_arguments",
        "_key",
        "_known",
        "_open",
        "_parts",
        "_role",
        "_tagged",
        "_value",
        "done",
        "failed",
        "name",
    )

    def __init__(self, known: Container[str], *, tagged: bool) -> None:
        """known: names of the functions. tagged: the format says that this is a call; then keys
        beyond the usual ones are passed over, and arguments may be missing (none are needed)."""
        self._known = known
        self._tagged = tagged
        self._expected = _OPEN
        self._doubled = False  # whether the object began with two braces
        self._key = ""
        self._value: JsonValue | None = None  # what is being read, and as what
        self._role = _IS_OTHER
        self._buffer: list[str] = []  # its text, where it is needed as a whole
        self._parts: list[str] = []  # arguments not yet taken
        self._open = False  # whether an object of arguments has begun
        self._have_arguments = False  # and ended
        self.name: str | None = None
        self.done = False
        self.failed = False

    @property
    def started(self) -> bool:
        """True from when it is certain what is called and that arguments follow."""
        return self._open and self.name is not None

    @property
    def complete(self) -> bool:
        """True when the call can be made."""
        return self._have_arguments and self.name is not None

    def take(self) -> str:
        """The arguments' text since the last take."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def push(self, text: str, start: int) -> int:
        """Reads text[start:]. Returns the position behind what belongs to the object: its end, the
        first wrong character, or len(text)."""
        i, end = start, len(text)
        while i < end and not (self.done or self.failed):
            if self._value is not None:
                i = self._read(self._value, text, i)
                continue
            match = _SPACE.match(text, i)
            i = match.end() if match else i
            if i < end:
                i += self._structure(text[i])
        return i

    def _read(self, value: JsonValue, text: str, start: int) -> int:
        end = value.push(text, start)
        if self._role == _IS_ARGUMENTS:
            positions = [position - start for position in value.raw]
            self._parts.append(escape_raw(text[start:end], positions))
        elif self._role != _IS_OTHER:
            self._buffer.append(text[start:end])
        if value.failed:
            self.failed = True
        elif value.done:
            self._value = None
            self._end_of(self._role)
        return end

    def _structure(self, character: str) -> int:
        """Takes one character of the object itself. Returns how many were used: 0 where it is the
        first one of a key or value."""
        expected = self._expected
        if expected == _OPEN and character == "{":
            self._expected = _FIRST_KEY
        elif expected == _FIRST_KEY and character == "{" and not self._doubled:
            self._doubled = True
        elif expected == _COLON and character == ":":
            self._expected = _VALUE
        elif expected == _NEXT and character == ",":
            self._expected = _KEY
        elif expected in (_NEXT, _FIRST_KEY) and character == "}":
            self._end_of_object()
        elif expected == _CLOSE and character == "}":
            self.done = True
        elif expected in (_KEY, _FIRST_KEY) and character == '"':
            self._begin(_IS_KEY)
            return 0
        elif expected == _VALUE:
            self._begin(self._role_of_value(character))
            return 0
        else:
            self.failed = True
        return 0 if self.failed else 1

    def _role_of_value(self, character: str) -> int:
        if self._key == "name" and self.name is None:
            return _IS_NAME
        if self._key in ("arguments", "parameters") and not self._open:
            return _IS_ARGUMENTS if character == "{" else _IS_HELD
        return _IS_OTHER

    def _begin(self, role: int) -> None:
        self._role = role
        self._value = JsonValue()
        self._open = self._open or role == _IS_ARGUMENTS

    def _end_of(self, role: int) -> None:
        """A key or value has ended."""
        self._expected = _COLON if role == _IS_KEY else _NEXT
        if role == _IS_ARGUMENTS:
            self._have_arguments = True
        elif role != _IS_OTHER:
            value = _text_value("".join(self._buffer))
            self._buffer.clear()
            if role == _IS_KEY:
                self._key = value or ""
                self.failed = not self._tagged and value not in _USUAL_KEYS
            elif role == _IS_NAME:
                self.failed = value is None or value not in self._known
                self.name = None if self.failed else value
            else:
                self._take_held(value)

    def _take_held(self, value: str | None) -> None:
        """Arguments that are no object: null, or an object written out as a string."""
        text = (value or "").strip(" \t\n\r")
        reader = JsonValue()
        if text.startswith("{") and reader.push(text, 0) == len(text) and reader.done:
            self._parts.append(escape_raw(text, reader.raw))
            self._open = self._have_arguments = True
        else:
            self.failed = True

    def _end_of_object(self) -> None:
        self.done = not self._doubled
        self._expected = _CLOSE
        if self.name is None or (not self._open and not self._tagged):
            self.failed = True
        elif not self._open:
            self._parts.append("{}")
            self._open = self._have_arguments = True


def _text_value(text: str) -> str | None:
    """The string that a JSON string stands for; "{}" for null; None for anything else, which may be
    too deep or too long to be read, and for what is not Unicode."""
    if text == "null":
        return "{}"
    if not text.startswith('"'):
        return None
    value: str = json.loads(text, strict=False)  # line breaks inside, as in JsonValue
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value
