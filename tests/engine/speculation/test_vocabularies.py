"""Which models may draft for which: compared id by id, refused in one sentence (fault 42)."""

from __future__ import annotations

import pytest

from headrace.engine.model import open_model
from headrace.engine.speculation.vocabularies import check_vocabularies
from headrace.errors import UsageError
from headrace.formats.token_table import SPECIAL, TEXT, pack_table, unpack_table
from headrace.formats.tokenizer import Tokenizer, TokenizerInfo

PIECES = [b"<s>", b"</s>", b"a", b"b", b"\xe2\x82", b" the"]


def tokenizer(
    pieces: list[bytes] = PIECES, special: tuple[int, ...] = (0, 1), ends: tuple[int, ...] = (1,)
) -> Tokenizer:
    kinds = bytes(SPECIAL if i in special else TEXT for i in range(len(pieces)))
    info = TokenizerInfo("t", len(pieces), 0, ends[0], None, None, ends, (), (), False)
    return Tokenizer(info, unpack_table(pack_table({}, pieces, kinds)), lambda: "")


def refusal(target: Tokenizer, draft: Tokenizer) -> str:
    with pytest.raises(UsageError) as caught:
        check_vocabularies(target, draft, "big", "small")
    return str(caught.value)


def test_the_same_vocabulary_drafts() -> None:
    assert check_vocabularies(tokenizer(), tokenizer(), "big", "small") == 6


def test_a_longer_one_drafts_what_both_have() -> None:
    longer = tokenizer([*PIECES, b"more", b"<pad>"], special=(0, 1, 7))
    assert check_vocabularies(tokenizer(), longer, "big", "small") == 6
    assert check_vocabularies(longer, tokenizer(), "big", "small") == 6


def test_the_first_id_that_differs_is_named_with_both_texts() -> None:
    other = tokenizer([b"<s>", b"</s>", b"a", b"b", b"\xe2\x82", b" a"])
    assert refusal(tokenizer(), other) == (
        "small cannot draft for big: token 5 is ' a' in the draft's vocabulary and ' the' in the "
        "target's."
    )
    other = tokenizer([b"<s>", b"</s>", b"a", b"b", b"\xe2\x83", b" a"])
    assert r"token 4 is b'\xe2\x83' in" in refusal(tokenizer(), other)


def test_a_control_token_is_no_text() -> None:
    text = refusal(tokenizer(), tokenizer(special=(0, 1, 3)))
    assert "token 3 is 'b' (a control token) in the draft's vocabulary and 'b' in" in text


def test_texts_must_be_able_to_end_alike() -> None:
    text = refusal(tokenizer(ends=(1,)), tokenizer(ends=(0,)))
    assert "end with token 0, '<s>' (a control token), and the target's with token 1" in text
    assert check_vocabularies(tokenizer(ends=(0, 1)), tokenizer(), "big", "small") == 6


@pytest.mark.models
def test_models_of_two_families_are_refused() -> None:
    target, draft = open_model("smollm2-135m").tokenizer, open_model("gemma3-270m").tokenizer
    assert "token 0 is '<pad>'" in refusal(target, draft)


@pytest.mark.large
def test_real_models_as_users_pair_them() -> None:
    """Fault 42: padded sizes may differ, vocabularies may not."""
    target = open_model("qwen2.5-coder-1.5b")
    draft = open_model("qwen2.5-coder-0.5b")
    shared = check_vocabularies(target.tokenizer, draft.tokenizer, target.name, draft.name)
    assert shared == target.tokenizer.num_ids < draft.program.vocab_size
    text = refusal(target.tokenizer, open_model("smollm2-135m").tokenizer)
    assert text == (
        "small cannot draft for big: token 0 is '<|endoftext|>' (a control token) in the draft's "
        "vocabulary and '!' in the target's."
    )
