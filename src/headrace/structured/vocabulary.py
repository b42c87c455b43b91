"""A tokenizer as the grammar library reads it: the bytes of every id, and how text becomes ids.

What a grammar says of text concerns the text that decoding shows. Control tokens show none, so a
literal `<|im_end|>` is spelled with ordinary tokens; a grammar names a control token without
quotes. (The library's own reader of tokenizer.json turns such a literal into the control token,
which then does not fit the literal.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import UsageError
from headrace.formats.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

#: Marks a control token in the library's own tables. No text holds this byte, and tokens that do
#: (parts of no character) are left out.
_MARK = b"\xff"


def read_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """The vocabulary. Raises UsageError where the library is missing or the model has no end."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise UsageError(
            "Structured output needs llguidance: pip install 'headrace[structured]'."
        ) from error
    if not tokenizer.eos_ids:
        raise UsageError("Structured output needs a model with an end-of-text id.")
    view = _View(tokenizer)
    vocabulary = LLTokenizer(
        view,  # type: ignore[arg-type]  # by its attributes, not by its class
        n_vocab=tokenizer.num_ids,
        eos_token=list(tokenizer.eos_ids),
    )
    view.tokens = []  # it has its own copy now
    return vocabulary


class _View:
    """The attributes that llguidance asks a tokenizer for, and the call that encodes."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.eos_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = tokenizer.special_ids
        pieces = (tokenizer.token_bytes(i) for i in range(tokenizer.num_ids))
        self.tokens = [b"" if _MARK in piece else piece for piece in pieces]
        control = set(self.special_token_ids)
        self._bytes = {
            piece: i for i, piece in enumerate(self.tokens) if len(piece) == 1 and i not in control
        }
        self._tokenizer = tokenizer
        self("")  # reads what encoding needs, before a step wants it

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids that spell just this text, or the beginning of it where the vocabulary lacks a byte.

        A tokenizer may compose characters or put a space in front, and a literal has to stay what
        it is: from there on it is spelled byte by byte.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        wanted = text.encode()
        ids, at = [], 0
        for token in self._tokenizer.encode(text, add_special=False, parse_special=False):
            piece = self._tokenizer.token_bytes(token)
            if not wanted.startswith(piece, at):
                break
            ids.append(token)
            at += len(piece)
        for byte in wanted[at:]:
            single = self._bytes.get(bytes([byte]))
            if single is None:
                break
            ids.append(single)
        return ids
