"""Texts and pairs as training data: nothing of the validation set is ever trained on."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.lab.training.recall import RecallData
from headrace.lab.training.text import (
    END,
    TextData,
    TextTokens,
    load_tokens,
    split_text,
    tokenize,
    train_tokenizer,
)


def text_of(paragraphs: int) -> str:
    rng = np.random.default_rng(1)
    words = ["mill", "water", "gate", "river", "wheel", "pond", "stone", "channel"]
    lines = [" ".join(rng.choice(words, int(rng.integers(3, 40)))) for _ in range(paragraphs)]
    return "\n\n".join(lines)


@given(st.lists(st.integers(0, 9), max_size=120), st.integers(1, 9), st.floats(0.05, 0.5))
def test_every_character_is_in_one_set_in_order(gaps, parts, share):
    # Numbered characters, with paragraphs ending here and there.
    text = "".join(chr(0x4E00 + i) + "\n\n" * (gap == 0) for i, gap in enumerate(gaps))
    train, validation = (
        [c for piece in pieces for c in piece if c != "\n"]
        for pieces in split_text(text, parts=parts, share=share)
    )
    assert train == sorted(train)
    assert validation == sorted(validation)
    assert sorted(train + validation) == [c for c in text if c != "\n"]


def test_the_split_is_by_position_and_near_the_share():
    text = text_of(2000)
    train, validation = split_text(text, parts=20, share=0.1)
    assert len(train) == len(validation) == 20
    assert 0.08 < sum(map(len, validation)) / len(text) < 0.12
    assert all(piece.endswith("\n\n") for piece in [*train, *validation[:-1]])


def test_the_tokenizer_has_the_size_and_loses_nothing():
    text = text_of(300)
    tokenizer = train_tokenizer([text], 280)
    assert tokenizer.get_vocab_size() == 280
    for sample in (text[:500], "déjà 水\x00\n", END):
        ids = tokenizer.encode(sample).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == sample
    with pytest.raises(UsageError, match="not 50000"):
        train_tokenizer([text], 50_000)


def test_windows_stay_inside_their_pieces(tmp_path: Path):
    # Numbered tokens: a window that crosses a border, or touches the other set, shows.
    train = [np.arange(0, 100), np.arange(200, 230)]
    validation = [np.arange(100, 200), np.arange(230, 240)]
    tokens = TextTokens(train, validation, 7)
    tokens.save(tmp_path / "tokens.npz")
    data = TextData(load_tokens(tmp_path / "tokens.npz"), batch=4, length=9, seed=3)
    allowed = set(range(100)) | set(range(200, 230))
    seen: set[int] = set()
    for step in range(60):
        batch = data.batch(step)
        assert batch.tokens.shape == (4, 9)
        assert (np.diff(batch.tokens, axis=1) == 1).all()
        assert (batch.targets == batch.tokens + 1).all()
        seen |= set(batch.tokens.ravel().tolist()) | set(batch.targets.ravel().tolist())
    assert seen <= allowed
    assert len(seen) > 100
    validated = [b for batch in data.validation() for b in batch.targets.ravel().tolist()]
    assert len(validated) == len(set(validated))  # every target once
    assert set(validated) <= set(range(100, 200)) | set(range(230, 240))
    assert len(validated) == 99 + 9


def test_a_batch_is_a_function_of_seed_and_step():
    tokens = TextTokens([np.arange(500)], [np.arange(500, 600)], 1)
    one, two = (TextData(tokens, batch=3, length=8, seed=5) for _ in range(2))
    two.batch(0)
    assert np.array_equal(one.batch(7).tokens, two.batch(7).tokens)
    assert not np.array_equal(one.batch(7).tokens, one.batch(8).tokens)
    other = TextData(tokens, batch=3, length=8, seed=6)
    assert not np.array_equal(one.batch(7).tokens, other.batch(7).tokens)
    with pytest.raises(UsageError, match="too short"):
        TextData(tokens, batch=3, length=300, seed=5)


def test_a_whole_text_becomes_data():
    text = text_of(800)
    tokens, tokenizer = tokenize(text, 285)
    train, validation = split_text(text)
    assert tokenizer.decode(list(np.concatenate(tokens.train))) == "".join(train)
    assert tokenizer.decode(list(np.concatenate(tokens.validation))) == "".join(validation)
    assert tokens.validation_bytes == len("".join(validation).encode())
    few = TextData(tokens, batch=8, length=16, seed=0, max_validation=64)
    assert sum(batch.tokens.size for batch in few.validation()) == 64


def test_recall_asks_for_the_facts_of_the_same_sequence():
    sizes = {"batch": 5, "facts": 6, "keys": 9, "values": 4, "validation_batches": 2}
    data = RecallData(**sizes, seed=2)
    assert data.vocab_size == 9 * 4 + 9 + 4
    answers = set()
    for batch in [data.batch(0), data.batch(1), *data.validation()]:
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            facts = dict(divmod(token, 4) for token in tokens[:6])
            assert len(facts) == 6  # no key twice
            assert targets[:6] == [-1] * 6
            for question, answer in zip(tokens[6:], targets[6:], strict=True):
                assert answer == 9 * 4 + 9 + facts[question - 9 * 4]
                answers.add(answer)
    assert len(answers) == 4
    first, other = next(data.validation()), next(RecallData(**sizes, seed=3).validation())
    assert np.array_equal(first.tokens, other.tokens)
    assert not np.array_equal(data.batch(0).tokens, data.batch(1).tokens)
