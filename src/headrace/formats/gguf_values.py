"""Bounds-checked reading of GGUF's primitive values: numbers, strings, arrays.

Every length and count is compared with the bytes that are really there before anything is
allocated, so a hostile header costs no more memory than its own size. Little-endian only.
Layout: GGUF specification, version 2 and 3.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NoReturn, overload

import numpy as np

from headrace.errors import ModelFileError

#: Longest string value (a chat template, a licence text) and longest key or tensor name, bytes.
MAX_STRING_BYTES = 16 << 20
MAX_NAME_BYTES = 65535
#: Most strings in one array; 64 times the largest vocabulary in use.
MAX_STRINGS = 1 << 24

_U64 = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
#: GGUF value type → struct code. Bools are read as uint8 and checked.
_SCALARS = {
    type_id: struct.Struct("<" + code)
    for type_id, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip


class StringArray(Sequence[str]):
    """An array of strings in a mapped file, decoded one by one when asked for.

    Text is UTF-8 with invalid bytes shown as U+FFFD; `raw` gives the exact bytes, which is what a
    tokenizer needs for tokens that are no valid UTF-8 by themselves. Iteration decodes in one
    sweep (about 0.3 µs per string); the array itself holds 8 bytes per string.
    """

    __slots__ = ("_buffer", "_starts")

    def __init__(self, buffer: memoryview, starts: array[int]) -> None:
        """starts[i]: where string i's length field lies; one more entry for the end of the last."""
        self._buffer = buffer
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return str(self._view(index), "utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        buffer, starts = self._buffer, self._starts
        for i in range(len(starts) - 1):
            yield str(buffer[starts[i] + 8 : starts[i + 1]], "utf-8", "replace")

    def raw(self, index: int) -> bytes:
        """The exact bytes of one string."""
        return bytes(self._view(index))

    def raw_items(self) -> Iterator[bytes]:
        """The exact bytes of every string, in order."""
        buffer, starts = self._buffer, self._starts
        for i in range(len(starts) - 1):
            yield bytes(buffer[starts[i] + 8 : starts[i + 1]])

    def _view(self, index: int) -> memoryview:
        count = len(self)
        at = index + count if index < 0 else index
        if not 0 <= at < count:
            raise IndexError(f"string {index} of an array of {count}")
        return self._buffer[self._starts[at] + 8 : self._starts[at + 1]]

    def __repr__(self) -> str:
        return f"StringArray of {len(self)} strings"


class Cursor:
    """A reading position in a little-endian buffer that never passes its end.

    source: what to call the file in messages. Every method moves `pos` past what it read and
    raises ModelFileError instead of reading outside the buffer.
    """

    __slots__ = ("buffer", "end", "pos", "source")

    def __init__(self, buffer: memoryview, source: str) -> None:
        self.buffer = buffer
        self.source = source
        self.pos = 0
        self.end = len(buffer)

    @property
    def remaining(self) -> int:
        return self.end - self.pos

    def fail(self, sentence: str) -> NoReturn:
        """Raises ModelFileError: the file's name and one sentence."""
        raise ModelFileError(f"{self.source}: {sentence}")

    def truncated(self, what: str) -> NoReturn:
        self.fail(
            f"the file is truncated or damaged: it ends at byte {self.end}, inside {what}; "
            "download it again."
        )

    def number(self, type_id: int, what: str) -> int | float | bool:
        """A scalar of GGUF value type `type_id` (known to be one)."""
        layout = _SCALARS[type_id]
        if self.remaining < layout.size:
            self.truncated(what)
        value: int | float = layout.unpack_from(self.buffer, self.pos)[0]
        self.pos += layout.size
        if type_id == _BOOL:
            if value > 1:
                self.fail(f"{what} is a bool with value {value}; the file is damaged.")
            return bool(value)
        return value

    def u32(self, what: str) -> int:
        return int(self.number(4, what))

    def u64(self, what: str) -> int:
        return int(self.number(10, what))

    def count(self, what: str, min_item_bytes: int) -> int:
        """A u64 count of things of at least `min_item_bytes` each, so they must fit."""
        count = self.u64(what)
        if count * min_item_bytes > self.remaining:
            self.fail(
                f"{what} is {count}, more than the {self.remaining} bytes that follow can hold; "
                "the file is truncated or damaged."
            )
        return count

    def string_bytes(self, what: str, max_bytes: int) -> bytes:
        length = self.u64(what)
        if length > max_bytes:
            self.fail(f"{what} is {length} bytes long, more than the {max_bytes} allowed.")
        if length > self.remaining:
            self.truncated(what)
        start = self.pos
        self.pos += length
        return bytes(self.buffer[start : self.pos])

    def name(self, what: str) -> str:
        """A key or tensor name: short, valid UTF-8."""
        data = self.string_bytes(what, MAX_NAME_BYTES)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8 ({data[:40]!r}); the file is damaged.")

    def value(self, type_id: int, what: str) -> object:
        """A metadata value.

        Integers → int, floats → float, bool → bool, string → str (invalid UTF-8 becomes U+FFFD),
        array of numbers → read-only numpy view of the file, array of bools → numpy bool view,
        array of strings → StringArray.
        """
        if type_id == _STRING:
            return self.string_bytes(what, MAX_STRING_BYTES).decode("utf-8", "replace")
        if type_id == _ARRAY:
            return self._array(what)
        if type_id not in _SCALARS:
            self.fail(f"{what} has value type {type_id}, which GGUF does not define.")
        return self.number(type_id, what)

    def _array(self, what: str) -> object:
        item_type = self.u32(f"the item type of {what}")
        if item_type == _STRING:
            return self._strings(what)
        if item_type == _ARRAY:
            self.fail(f"{what} is an array of arrays, which no model file uses.")
        if item_type not in _SCALARS:
            self.fail(f"{what} has items of type {item_type}, which GGUF does not define.")
        layout = _SCALARS[item_type]
        count = self.count(f"the length of {what}", layout.size)
        start = self.pos
        self.pos += count * layout.size
        # frombuffer refuses an empty view, and [start:pos] keeps it from seeing past the array.
        items = (
            np.frombuffer(self.buffer[start : self.pos], dtype=layout.format)
            if count
            else np.empty(0, dtype=layout.format)
        )
        if item_type == _BOOL:
            if count and items.max() > 1:
                self.fail(f"{what} is an array of bools with other values; the file is damaged.")
            return items.view(np.bool_)
        return items

    def _strings(self, what: str) -> StringArray:
        """Walks the length fields (0.2 µs each) and decodes nothing."""
        count = self.count(f"the length of {what}", _U64.size)
        if count > MAX_STRINGS:
            self.fail(f"{what} has {count} strings, more than the {MAX_STRINGS} allowed.")
        buffer, end, pos = self.buffer, self.end, self.pos
        unpack = _U64.unpack_from
        starts = array("q")
        append = starts.append
        try:
            for _ in range(count):
                append(pos)
                pos += 8 + unpack(buffer, pos)[0]
                if pos > end:
                    self.truncated(what)
        except struct.error:
            self.truncated(what)
        append(pos)
        self.pos = pos
        return StringArray(buffer, starts)
