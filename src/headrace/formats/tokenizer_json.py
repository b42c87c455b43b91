"""Build a tokenizers JSON (the `tokenizer.json` of Hugging Face) from a Vocabulary.

The JSON is the one form every consumer reads: the `tokenizers` library, `export-tokenizer`, and
grammar engines. Two spellings exist. Byte-level BPE writes each byte as one printable character and
brings its merges. SentencePiece BPE writes spaces as U+2581, brings scores instead of merges, and
falls back to byte tokens `<0xNN>`; its merges are derived here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.errors import ModelFileError
from headrace.formats.pretokenizers import PRE_TOKENIZERS
from headrace.formats.vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary

SPACE = "\u2581"

#: Raised whenever the built JSON of an unchanged vocabulary changes; part of every cache key.
ADAPTER_VERSION = 2


def build_tokenizer_json(vocab: Vocabulary) -> str:
    """The tokenizers JSON of `vocab`, compact. Special ids are not added by it: encode() does."""
    parts = _byte_level(vocab) if vocab.kind == "byte-level" else _spm(vocab)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocab),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        **parts,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ModelFileError("tokenizer.ggml.tokens holds text that is not UTF-8") from error
    return text


def _added_tokens(vocab: Vocabulary) -> list[dict[str, Any]]:
    """Tokens matched in the raw text before anything else: control and user-defined ones.

    `special` marks those that plain text must not produce (encode with parse_special=False).
    Runs of spaces are left to the merges: they are spelled with U+2581 in the vocabulary, so they
    never appear in raw text under that spelling.
    """
    added = []
    for i, (text, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True)):
        if kind not in (CONTROL, USER_DEFINED, UNKNOWN) or not text:
            continue
        if kind == USER_DEFINED and vocab.kind != "byte-level" and not text.strip(" " + SPACE):
            continue
        special = kind != USER_DEFINED
        keeps_blanks = i in (vocab.bos_id, vocab.eos_id, vocab.unk_id)
        added.append(
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": vocab.rstrip_special and not keeps_blanks,
                "normalized": False,
                "special": special,
            }
        )
    return added


def _byte_level(vocab: Vocabulary) -> dict[str, Any]:
    assert vocab.pre is not None
    pre = PRE_TOKENIZERS[vocab.pre]
    ids = {text: i for i, text in enumerate(vocab.tokens)}
    merges = [(a, b) for a, b in vocab.merges if a in ids and b in ids and a + b in ids]
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pre.steps)},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": _bpe_model(ids, merges, unk=None, byte_fallback=False, ignore=pre.ignore_merges),
    }


def _spm(vocab: Vocabulary) -> dict[str, Any]:
    # Converters write user-defined runs of spaces as spaces; inside the model a space is U+2581.
    texts = [
        text.replace(" ", SPACE) if kind == USER_DEFINED and not text.strip(" ") else text
        for text, kind in zip(vocab.tokens, vocab.types, strict=True)
    ]
    ids = {text: i for i, text in enumerate(texts)}
    merges = list(vocab.merges) if vocab.kind == "spm-merges" else _spm_merges(vocab, texts, ids)
    replace: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    unprepend = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocab.add_space_prefix:
        decoders.append(unprepend)
        replace = {"type": "Sequence", "normalizers": [prepend, replace]}
    unk = None if vocab.unk_id is None else texts[vocab.unk_id]
    merges = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
    return {
        "normalizer": replace,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe_model(ids, merges, unk=unk, byte_fallback=True, ignore=False),
    }


def _spm_merges(vocab: Vocabulary, texts: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """All splits of every token into two tokens, best merge first.

    SentencePiece merges the pair whose result has the best score. User-defined tokens come before
    all others whatever the file says (Gemma's carry -1000 but have the lowest indices).
    Among the splits of one token the longest left part goes first: runs grow from the left.
    """
    rows: list[tuple[float, int, int, str, str]] = []
    for text, kind, score in zip(texts, vocab.types, vocab.scores, strict=True):
        if kind not in (NORMAL, USER_DEFINED):
            continue
        rank = 0.0 if kind == USER_DEFINED else -score
        for cut in range(len(text) - 1, 0, -1):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                rows.append((rank, -cut, cut - len(text), left, right))
    rows.sort(key=lambda row: row[:3])
    return [(left, right) for _, _, _, left, right in rows]


def _bpe_model(
    ids: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    unk: str | None,
    byte_fallback: bool,
    ignore: bool,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore,
        "vocab": ids,
        "merges": _written(merges),
    }


def _written(merges: list[tuple[str, str]]) -> list[str] | list[tuple[str, str]]:
    """Merges in the older spelling "left right" where no token holds a space.

    Parsing it takes half the peak memory of pairs: 180 instead of 350 MB for Gemma's 514,906.
    """
    if any(" " in left or " " in right for left, right in merges):
        return merges
    return [f"{left} {right}" for left, right in merges]


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of a tokenizers-JSON model, in whichever spelling they are written."""
    pairs = []
    for merge in model.get("merges") or ():
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        pairs.append((left, right))
    return pairs
