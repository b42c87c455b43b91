"""Gap tokens: named by the file, or found by how a family spells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tokenizer_load import tiny

from headrace.formats.fill_in_middle import SPELLINGS, GapTokens, gap_tokens
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_load import load_tokenizer


def with_tokens(cache: Path, *texts: str, **keys: Any) -> tuple[dict[str, Any], Tokenizer]:
    """Metadata and tokenizer of the tiny vocabulary with control tokens behind it, from id 258."""
    tokens = [*tiny().metadata["tokenizer.ggml.tokens"], *texts]
    types = np.array([1] * 257 + [3] * (1 + len(texts)), dtype=np.int32)
    files = tiny(tokens=tokens, token_type=types, **keys)
    return dict(files.metadata), load_tokenizer(files, cache=cache)


@pytest.mark.parametrize("texts", SPELLINGS, ids=lambda texts: texts[0])
def test_every_spelling_is_found(tmp_path: Path, texts: tuple[str, str, str]) -> None:
    metadata, tokenizer = with_tokens(tmp_path, texts[2], "<|fim_pad|>", texts[0], texts[1])
    assert gap_tokens(metadata, tokenizer) == GapTokens(260, 261, 258, (258, 259, 260, 261))


def test_two_of_three_are_none(tmp_path: Path) -> None:
    metadata, tokenizer = with_tokens(tmp_path, "<|fim_prefix|>", "<|fim_middle|>")
    assert gap_tokens(metadata, tokenizer) is None
    assert gap_tokens({}, load_tokenizer(tiny(), cache=tmp_path)) is None


def test_the_file_names_them(tmp_path: Path) -> None:
    names = {"fim_pre_token_id": 258, "fim_suf_token_id": 260, "fim_mid_token_id": 259}
    metadata, tokenizer = with_tokens(tmp_path, "<a>", "<b>", "<c>", **names)
    gap = gap_tokens(metadata, tokenizer)
    assert gap == GapTokens(258, 260, 259, (258, 259, 260))
    assert gap.prompt([1, 2], [3], (9,)) == [9, 258, 1, 2, 260, 3, 259]
    for wrong in (9999, -1, "258", None, 260):
        metadata["tokenizer.ggml.fim_pre_token_id"] = wrong
        assert gap_tokens(metadata, tokenizer) is None
