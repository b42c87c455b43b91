"""The bytes each token stands for, from a tokenizers JSON: what the decoders would write.

Works on any tokenizers JSON whose decoding is a plain concatenation of bytes: byte-level BPE, and
SentencePiece spelling with byte fallback. Others are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import ModelFileError
from headrace.formats.token_table import SPECIAL, TEXT

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def token_pieces(document: Mapping[str, Any]) -> tuple[list[bytes], bytes, bool]:
    """(bytes of every id, kind of every id, whether decoding drops one leading space).

    Ids without a token (holes) stand for nothing and count as special. Added tokens stand for their
    own text. Raises ModelFileError for decoders that do more than concatenate.
    """
    vocab = model_vocab(document)
    added = list(document.get("added_tokens") or ())
    num_ids = 1 + max((*vocab.values(), *(int(t["id"]) for t in added)), default=-1)
    pieces: list[bytes] = [b""] * num_ids
    kinds = bytearray([SPECIAL]) * num_ids
    byte_level, byte_fallback, strip = decoding(document)
    alphabet = byte_alphabet()
    for text, token_id in vocab.items():
        kinds[token_id] = TEXT
        if byte_level:
            pieces[token_id] = _byte_level_piece(text, alphabet)
        else:
            match = _BYTE_TOKEN.match(text) if byte_fallback else None
            pieces[token_id] = (
                bytes([int(match[1], 16)]) if match else text.replace(_SPACE, " ").encode()
            )
    for token in added:
        text = str(token["content"])
        pieces[token["id"]] = (text if byte_level else text.replace(_SPACE, " ")).encode()
        kinds[token["id"]] = SPECIAL if token.get("special") else TEXT
    return pieces, bytes(kinds), strip


def _byte_level_piece(text: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes([alphabet[c] for c in text])
    except KeyError:  # not spelled in the alphabet: stands for itself
        return text.encode()


def model_vocab(document: Mapping[str, Any]) -> dict[str, int]:
    """Text to id of the model, whatever its kind. Raises ModelFileError for unsupported ones."""
    model = document.get("model") or {}
    vocab = model.get("vocab")
    kind = model.get("type", "BPE")
    if kind == "BPE" and isinstance(vocab, dict):
        return vocab
    if kind == "Unigram" and isinstance(vocab, list):
        return {str(entry[0]): i for i, entry in enumerate(vocab)}
    raise ModelFileError(f"tokenizer.json holds a {kind} model, which is not supported")


def decoding(document: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """(byte-level, byte fallback, drops a leading space) of the decoder."""
    decoder = document.get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    byte_level = byte_fallback = strip = False
    for step in steps:
        kind = step.get("type")
        if kind == "ByteLevel":
            byte_level = True
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "Strip" and step.get("content") == " " and step.get("start") == 1:
            strip = True
        elif kind == "Metaspace":
            strip = step.get("prepend_scheme", "always") != "never"
        elif kind not in ("Replace", "Fuse", None):
            raise ModelFileError(f"tokenizer.json uses the decoder {kind!r}, not supported")
    return byte_level, byte_fallback, strip
