"""Tokenizer: text to ids and back, for one model.

Decoding reads a mapped table of token bytes; encoding uses the `tokenizers` library, loaded on the
first call. Which ids exist, which end generation, and whether prompts start with BOS is answered
here and nowhere else. Built by `tokenizer_load.load_tokenizer`; knows no model files.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ModelFileError, PromptError
from headrace.formats.token_table import TokenTable

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

_LOG = logging.getLogger("headrace.tokenizer")


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What the model's files say about its tokenizer, beyond the tokens themselves.

    num_ids: ids 0 … num_ids - 1 are tokens; larger rows of a padded embedding table are not.
    eos_ids: every id that ends generation. prefix_ids, suffix_ids: what encode() adds around a text
    (BOS, EOS). strip_space: decoding a text drops one leading space, which encoding has added.
    """

    name: str
    num_ids: int
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eos_ids: tuple[int, ...]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    strip_space: bool


class Tokenizer:
    """Encode, decode, and the ids a model gives a meaning. Safe to use from several threads."""

    def __init__(
        self,
        info: TokenizerInfo,
        table: TokenTable,
        read_json: Callable[[], str],
        encoder: Encoder | None = None,
    ) -> None:
        """read_json: gives the tokenizers JSON; called once on the first encode, unless an encoder
        built from it is at hand."""
        self.info = info
        self._table = table
        self._read_json = read_json
        self._encoder = encoder
        self._plain_encoder: Encoder | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Vocabulary name for people, such as "gpt2/qwen2"."""
        return self.info.name

    @property
    def num_ids(self) -> int:
        """Real size of the vocabulary: every id below it is a token."""
        return self.info.num_ids

    @property
    def bos_id(self) -> int | None:
        """The id that starts a text, if the model has one."""
        return self.info.bos_id

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text, if the model has one."""
        return self.info.eos_id

    @property
    def pad_id(self) -> int | None:
        """The padding id, if the model names one."""
        return self.info.pad_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends generation, ascending: EOS, end of turn, and the like."""
        return self.info.eos_ids

    @property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token, at least 1."""
        return self._table.max_token_bytes

    def fingerprint(self) -> str:
        """32 hexadecimal digits of what every id stands for."""
        return self._table.fingerprint()

    @property
    def add_bos(self) -> bool:
        """Whether encode(add_special=True) starts with BOS."""
        return self.bos_id is not None and self.bos_id in self.info.prefix_ids

    @property
    def special_ids(self) -> list[int]:
        """Control tokens, ascending: decode() leaves them out by default."""
        return self._table.special_ids()

    def is_special(self, token_id: int) -> bool:
        """True for control tokens. IndexError for an id that is no token."""
        return self._table.is_special(token_id)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Ids of `text`.

        add_special: put the model's BOS (and EOS) around, as its files say. parse_special: control
        tokens written out in the text, such as "<|im_end|>", become that one id; otherwise they are
        ordinary characters. A text that itself begins with the BOS literal keeps it, so the result
        then starts with two BOS ids when both are on; a warning says so. Raises PromptError for
        text that is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text holds a lone surrogate at character {error.start}: it is not Unicode"
            ) from error
        ids = _encode(self._load() if parse_special else self._load_plain(), text)
        if not add_special:
            return ids
        if self.add_bos and ids and ids[0] == self.bos_id:
            _LOG.warning(
                "the text already starts with %r and the model adds one: the prompt has two",
                self.token_text(ids[0]),
            )
        return [*self.info.prefix_ids, *ids, *self.info.suffix_ids]

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continuation: bool = False
    ) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD.

        continuation: the ids follow earlier text, so a leading space is kept also where the model
        adds one in front of every text. Raises IndexError for an id that is no token.
        """
        table = self._table
        data = b"".join(
            table.token_bytes(i) for i in ids if not (skip_special and table.is_special(i))
        )
        if self.info.strip_space and not continuation and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; may be part of a character. IndexError if it is no token."""
        return self._table.token_bytes(token_id)

    @property
    def table(self) -> TokenTable:
        """The bytes and kinds of all tokens."""
        return self._table

    def token_text(self, token_id: int) -> str:
        """One token for people to read; a part of a character shows as U+FFFD."""
        return self._table.token_bytes(token_id).decode("utf-8", errors="replace")

    def to_json(self) -> str:
        """The tokenizers JSON (`tokenizer.json`), without the BOS/EOS template."""
        return self._read_json()

    def encoder(self) -> Encoder:
        """The `tokenizers` object itself, for libraries that need it. Do not change it."""
        return self._load()

    def _load(self) -> Encoder:
        if self._encoder is None:
            with self._lock:
                if self._encoder is None:
                    self._encoder = _build_encoder(self._read_json())
        return self._encoder

    def _load_plain(self) -> Encoder:
        """An encoder that takes control tokens for ordinary text. One of its own: the switch can
        not be changed while another thread encodes."""
        with self._lock:
            if self._plain_encoder is None:
                encoder = _build_encoder(self._read_json())
                encoder.encode_special_tokens = True
                self._plain_encoder = encoder
        return self._plain_encoder


def first_difference(a: Tokenizer, b: Tokenizer) -> int | None:
    """The first id that is not the same token in two vocabularies (its bytes, and whether it is a
    control token), or None when all ids that both have are."""
    for token_id in range(min(a.num_ids, b.num_ids)):
        if a.token_bytes(token_id) != b.token_bytes(token_id):
            return token_id
        if a.is_special(token_id) != b.is_special(token_id):
            return token_id
    return None


#: Characters from which on a text is encoded without holding the interpreter: other threads go on
#: while it takes its time, about a second per million characters.
_LONG_TEXT = 4096


def _encode(encoder: Encoder, text: str) -> list[int]:
    if len(text) < _LONG_TEXT:
        return list(encoder.encode(text, add_special_tokens=False).ids)
    return list(encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _build_encoder(text: str) -> Encoder:
    from tokenizers import Tokenizer as Encoder  # on first use: decoding alone never needs it

    try:
        encoder = Encoder.from_str(text)
    except Exception as error:  # the library raises bare Exceptions
        raise ModelFileError(f"the tokenizer can not be built: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    del text
    return_free_memory()
    return encoder


def return_free_memory() -> None:
    """Give free heap pages back to the system: parsing leaves twice the tokenizer's own size."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def check_ids(ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Raise PromptError unless every id is a token of this model."""
    for token_id in ids:
        if not 0 <= token_id < tokenizer.num_ids:
            raise PromptError(
                f"token id {token_id} is outside this vocabulary (0 … {tokenizer.num_ids - 1})"
            )
