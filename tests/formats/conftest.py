"""Fixtures of the text half of the formats room: vocabularies, templates, texts, tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from text_data import declaration_texts, vocabulary_suite

from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_load import load_tokenizer


@pytest.fixture(scope="session")
def suite() -> Path:
    return vocabulary_suite()


@pytest.fixture(scope="session")
def declarations() -> dict[str, str]:
    return declaration_texts()


@pytest.fixture(scope="session")
def vocabulary(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """Name of a vocabulary of the suite -> its tokenizer, built once, in a cache of the test's."""
    built = tmp_path_factory.mktemp("tokenizers")

    @cache
    def load(name: str) -> Tokenizer:
        return load_tokenizer(open_checkpoint(suite / f"ggml-vocab-{name}.gguf"), cache=built)

    return load
