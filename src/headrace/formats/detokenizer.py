"""Detokenizer: text deltas from ids, one at a time, never splitting a character.

The deltas of a stream joined, plus `finish()`, are exactly `Tokenizer.decode` of all its ids.
Bytes that may still become a character wait for the next token; bytes that can not become U+FFFD.
Holding back a possible stop string is the engine's part.
"""

from __future__ import annotations

import codecs

from headrace.formats.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One per output sequence. Costs about a microsecond per token; not thread-safe."""

    __slots__ = ("_bytes_of", "_decoder", "_pending", "_strip")

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, continuation: bool = False
    ) -> None:
        """continuation: see Tokenizer.decode; set it when the ids continue a prompt."""
        table = tokenizer.table
        self._bytes_of = table.text_bytes if skip_special else table.token_bytes
        self._strip = tokenizer.info.strip_space and not continuation
        self._decoder = _UTF8(errors="replace")
        self._pending = False

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; may be empty. IndexError if it is no token."""
        data = self._bytes_of(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        if not self._pending:
            try:
                return data.decode()  # whole characters, as nearly always
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self._pending = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """What is left at the end: one U+FFFD for an unfinished character, else nothing."""
        self._pending = False
        return self._decoder.decode(b"", final=True)

    @property
    def pending(self) -> bool:
        """True while bytes of an unfinished character wait."""
        return self._pending
