"""Streaming: deltas joined are the whole text, no character is split (faults 43, 44)."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PromptError
from headrace.formats.detokenizer import Detokenizer
from headrace.formats.token_table import SPECIAL, TEXT, pack_table, unpack_table
from headrace.formats.tokenizer import Tokenizer, TokenizerInfo, check_ids, first_difference


def byte_tokenizer(*, strip_space: bool = False) -> Tokenizer:
    """A tokenizer of 256 byte tokens, three longer ones, and one control token."""
    pieces = [bytes([b]) for b in range(256)] + [b" ", b" leading", b" x", b"<end>"]
    kinds = bytes([TEXT] * 259 + [SPECIAL])
    info = TokenizerInfo("bytes", 260, None, 259, None, None, (259,), (), (), strip_space)
    table = unpack_table(pack_table({}, pieces, kinds))
    return Tokenizer(info, table, lambda: "")


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


FAMILY = "👩‍👩‍👧‍👦"


@pytest.mark.parametrize("text", [FAMILY, "Привет", "漢字かな", "naïve – “quotes”", "a\u0301"])
def test_characters_forced_byte_by_byte_are_never_split(text: str) -> None:
    """Fault 43."""
    tokenizer = byte_tokenizer()
    ids = list(text.encode())
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == text == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(deltas)
    # A delta is whole characters: there are as many non-empty ones as characters.
    assert len([d for d in deltas if d]) == len(text)


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "llama-spm"])
def test_real_vocabularies_split_characters_over_tokens(
    name: str, vocabulary: Callable[[str], Tokenizer]
) -> None:
    tokenizer = vocabulary(name)
    text = f"{FAMILY} Привет 漢字𠮷 ༀ"
    ids = tokenizer.encode(text, add_special=False)
    detokenizer = Detokenizer(tokenizer)
    waits = 0
    deltas = []
    for token_id in ids:
        deltas.append(detokenizer.push(token_id))
        waits += detokenizer.pending
    assert waits > 0, "no token ended inside a character: the text tests nothing"
    assert "".join(deltas) + detokenizer.finish() == text


def test_invalid_bytes_at_the_end_give_one_replacement_character() -> None:
    tokenizer = byte_tokenizer()
    ids = [*b"ok", *"🦙".encode()[:3]]
    deltas = stream(tokenizer, ids)
    assert deltas[:2] == ["o", "k"]
    assert deltas[-1] == "\ufffd"
    assert "".join(deltas) == tokenizer.decode(ids) == "ok\ufffd"


def test_leading_spaces_are_neither_lost_nor_doubled() -> None:
    """Fault 44."""
    ids = [256, 257, 258]
    assert "".join(stream(byte_tokenizer(), ids)) == "  leading x" == byte_tokenizer().decode(ids)
    spm = byte_tokenizer(strip_space=True)
    assert "".join(stream(spm, ids)) == " leading x" == spm.decode(ids)
    assert "".join(stream(spm, ids, continuation=True)) == "  leading x"
    assert spm.decode(ids, continuation=True) == "  leading x"
    # A control token in front takes no space away, and the strip happens once.
    assert "".join(stream(spm, [259, 256, 256])) == " " == spm.decode([259, 256, 256])


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 259), max_size=60),
    strip=st.booleans(),
    skip_special=st.booleans(),
    continuation=st.booleans(),
)
def test_any_stream_joins_to_the_whole(
    ids: list[int], strip: bool, skip_special: bool, continuation: bool
) -> None:
    tokenizer = byte_tokenizer(strip_space=strip)
    options = {"skip_special": skip_special, "continuation": continuation}
    deltas = stream(tokenizer, ids, **options)
    assert "".join(deltas) == tokenizer.decode(ids, **options)


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([*b"hi", 259]) == "hi"
    assert tokenizer.decode([*b"hi", 259], skip_special=False) == "hi<end>"
    assert tokenizer.special_ids == [259]


@pytest.mark.parametrize("token_id", [-1, 260, 10**6])
def test_ids_that_are_no_tokens_are_refused(token_id: int) -> None:
    tokenizer = byte_tokenizer()
    for action in (
        tokenizer.token_bytes,
        tokenizer.is_special,
        lambda i: tokenizer.decode([i]),
        Detokenizer(tokenizer).push,
    ):
        with pytest.raises(IndexError, match=str(token_id)):
            action(token_id)
    with pytest.raises(PromptError, match=str(token_id)):
        check_ids([0, token_id], tokenizer)


def test_lone_surrogates_are_refused(vocabulary: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(PromptError, match="surrogate at character 2"):
        vocabulary("gpt-2").encode("ab\ud800")


def test_first_difference(vocabulary: Callable[[str], Tokenizer]) -> None:
    assert first_difference(vocabulary("qwen2"), vocabulary("qwen35")) is None
    assert first_difference(vocabulary("gpt-2"), vocabulary("starcoder")) == 0


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.binary(max_size=9), max_size=20), cut=st.integers(0, 400))
def test_token_table_round_trip_and_damage(pieces: list[bytes], cut: int) -> None:
    kinds = bytes(i % 2 for i in range(len(pieces)))
    packed = pack_table({"info": {"name": "ü"}}, pieces, kinds)
    table = unpack_table(packed)
    assert [table.token_bytes(i) for i in range(len(table))] == pieces
    assert table.special_ids() == list(range(1, len(pieces), 2))
    assert table.header["info"] == {"name": "ü"}
    if cut < len(packed):
        with pytest.raises((ValueError, json.JSONDecodeError, KeyError)):
            unpack_table(packed[:cut])
    noise = bytearray(packed)
    noise[cut % len(noise)] ^= 0xFF
    try:
        damaged = unpack_table(bytes(noise))
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    for i in np.arange(len(damaged)):
        damaged.token_bytes(int(i))
