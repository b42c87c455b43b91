"""Reads one JSON value as it arrives, character by character, and knows where it ends.

RFC 8259 with one leniency: control characters inside strings are let through and reported, since
models write line breaks there. No recursion and no copies, so depth and length cost only the text
itself. Knows nothing about tool calls.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\n\r]*")
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}

# What is expected next.
_VALUE, _FIRST_ITEM, _FIRST_KEY, _KEY, _COLON, _NEXT = range(6)
_STRING, _ESCAPE, _HEX_DIGIT, _NUMBER, _LITERAL = range(6, 11)

#: (state of a number, kind of character) → next state; "9" stands for any digit.
_NUMBER_STEPS = {
    ("-", "0"): "0",
    ("-", "9"): "9",
    ("0", "."): ".",
    ("0", "e"): "e",
    ("9", "0"): "9",
    ("9", "9"): "9",
    ("9", "."): ".",
    ("9", "e"): "e",
    (".", "0"): ".9",
    (".", "9"): ".9",
    (".9", "0"): ".9",
    (".9", "9"): ".9",
    (".9", "e"): "e",
    ("e", "+"): "e+",
    ("e", "-"): "e+",
    ("e", "0"): "e9",
    ("e", "9"): "e9",
    ("e+", "0"): "e9",
    ("e+", "9"): "e9",
    ("e9", "0"): "e9",
    ("e9", "9"): "e9",
}
_NUMBER_ENDS = frozenset(("0", "9", ".9", "e9"))


class JsonValue:
    """One value. done: it has ended. failed: what came is not JSON."""

    __slots__ = ("_key", "_mode", "_open", "_rest", "done", "failed", "raw")

    def __init__(self) -> None:
        self._open: list[str] = []  # the brackets still open, outermost first
        self._mode = _VALUE
        self._key = False  # whether the string being read is a key
        self._rest = ""  # of a literal: what must follow; of a number: its state; of \u: digits
        self.done = False
        self.failed = False
        #: Positions, in the text of the last push, of control characters inside strings.
        self.raw: list[int] = []

    def push(self, text: str, start: int) -> int:
        """Reads text[start:]. Returns the position behind the value when it ends in here, the
        position of the first wrong character when it fails, and len(text) otherwise."""
        if self.raw:
            self.raw = []
        i, end = start, len(text)
        while i < end:
            if self._mode == _STRING:
                match = _PLAIN.match(text, i)
                i = match.end() if match else i
                if i == end:
                    break
                self._string_character(text[i], i)
            elif self._mode == _NUMBER and not self._number_character(text[i]):
                if self.done or self.failed:
                    return i
                continue  # the number is over; this character is read again
            elif self._mode < _STRING:
                match = _SPACE.match(text, i)
                i = match.end() if match else i
                if i == end:
                    break
                self._structure(text[i])
            elif self._mode != _NUMBER:
                self._inner_character(text[i])
            if self.failed:
                return i
            i += 1
            if self.done:
                return i
        return i

    def _string_character(self, character: str, position: int) -> None:
        if character == '"':
            if self._key:
                self._key = False
                self._mode = _COLON
            else:
                self._end_value()
        elif character == "\\":
            self._mode = _ESCAPE
        else:
            self.raw.append(position)

    def _inner_character(self, character: str) -> None:
        """Inside an escape or a literal."""
        if self._mode == _ESCAPE:
            if character == "u":
                self._mode, self._rest = _HEX_DIGIT, "4"
            elif character in '"\\/bfnrt':
                self._mode = _STRING
            else:
                self.failed = True
        elif self._mode == _HEX_DIGIT:
            if character not in _HEX:
                self.failed = True
            self._rest = str(int(self._rest) - 1)
            if self._rest == "0":
                self._mode = _STRING
        elif character == self._rest[0]:
            self._rest = self._rest[1:]
            if not self._rest:
                self._end_value()
        else:
            self.failed = True

    def _number_character(self, character: str) -> bool:
        """False when the character is no part of the number."""
        kind = "9" if character in "123456789" else "e" if character == "E" else character
        step = _NUMBER_STEPS.get((self._rest, kind))
        if step is not None:
            self._rest = step
            return True
        if self._rest in _NUMBER_ENDS:
            self._end_value()
        else:
            self.failed = True
        return False

    def _structure(self, character: str) -> None:
        """Between values: a bracket, a separator, or the first character of a value or key."""
        mode = self._mode
        if mode == _COLON:
            self._mode = _VALUE
            self.failed = character != ":"
        elif mode == _NEXT and character == ",":
            self._mode = _KEY if self._open[-1] == "{" else _VALUE
        elif character in "}]":
            closes = self._open and self._open[-1] == ("{" if character == "}" else "[")
            if closes and mode in (_NEXT, _FIRST_KEY, _FIRST_ITEM):
                self._open.pop()
                self._end_value()
            else:
                self.failed = True
        elif mode in (_KEY, _FIRST_KEY) and character == '"':
            self._key = True
            self._mode = _STRING
        elif mode in (_VALUE, _FIRST_ITEM):
            self._first_character(character)
        else:
            self.failed = True

    def _first_character(self, character: str) -> None:
        if character == "{":
            self._open.append(character)
            self._mode = _FIRST_KEY
        elif character == "[":
            self._open.append(character)
            self._mode = _FIRST_ITEM
        elif character == '"':
            self._mode = _STRING
        elif character in _LITERALS:
            self._mode, self._rest = _LITERAL, _LITERALS[character]
        elif character in "-0123456789":
            self._mode = _NUMBER
            self._rest = character if character in "-0" else "9"
        else:
            self.failed = True

    def _end_value(self) -> None:
        if self._open:
            self._mode = _NEXT
        else:
            self.done = True


def escape_raw(text: str, positions: list[int]) -> str:
    """text with the control characters at these positions written as JSON escapes."""
    if not positions:
        return text
    parts: list[str] = []
    last = 0
    for position in positions:
        parts += text[last:position], f"\\u{ord(text[position]):04x}"
        last = position + 1
    parts.append(text[last:])
    return "".join(parts)
