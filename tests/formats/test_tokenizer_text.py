"""Property and oracle: text in 531 languages survives the round trip, streamed = whole, and ids
equal those of the transformers classes that define the original tokenizers."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.formats.detokenizer import Detokenizer
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_json import merge_pairs

#: Characters of each declaration: the start holds its script and its punctuation.
EXCERPT = 700

ROUND_TRIP = ("gpt-2", "llama-bpe", "llama-spm", "qwen2", "gemma-4", "starcoder")
NFC = ("qwen2",)


def excerpts(declarations: dict[str, str]) -> Iterator[tuple[str, str]]:
    for code, text in sorted(declarations.items()):
        yield code, text[:EXCERPT]


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_every_language_survives_the_round_trip(
    name: str, declarations: dict[str, str], vocabulary: Callable[[str], Tokenizer]
) -> None:
    assert len(declarations) >= 500
    tokenizer = vocabulary(name)
    for code, text in excerpts(declarations):
        want = unicodedata.normalize("NFC", text) if name in NFC else text
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == want, code
        stream = Detokenizer(tokenizer)
        deltas = [stream.push(i) for i in ids]
        assert "".join(deltas) + stream.finish() == want, code
        assert not any("\ufffd" in d for d in deltas), code


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "module", "class_name"),
    [
        ("qwen2", "qwen2", "Qwen2Tokenizer"),
        ("qwen35", "qwen3_5", "Qwen3_5Tokenizer"),
        ("command-r", "cohere", "CohereTokenizer"),
        ("mpt", "gpt_neox", "GPTNeoXTokenizer"),
        ("gpt-2", "gpt2", "GPT2Tokenizer"),
        ("gemma-4", "gemma", "GemmaTokenizer"),
    ],
)
def test_ids_equal_the_original_tokenizers(
    name: str,
    module: str,
    class_name: str,
    declarations: dict[str, str],
    vocabulary: Callable[[str], Tokenizer],
) -> None:
    """The transformers class brings its own normaliser and pre-tokenizer; only tokens are ours."""
    import importlib

    tokenizer = vocabulary(name)
    document: dict[str, Any] = json.loads(tokenizer.to_json())
    model = document["model"]
    original_class = getattr(
        importlib.import_module(f"transformers.models.{module}.tokenization_{module}"), class_name
    )
    original = original_class(vocab=model["vocab"], merges=merge_pairs(model))
    from tokenizers import AddedToken

    user_defined = [t["content"] for t in document["added_tokens"] if not t["special"]]
    if name != "gemma-4":  # that class already knows its own
        original.add_tokens([AddedToken(t, normalized=False) for t in user_defined])
    different = []
    for code, text in excerpts(declarations):
        if name == "qwen35":  # this class composes; the model's goldens do not
            text = unicodedata.normalize("NFC", text)
        want = original.encode(text, add_special_tokens=False)
        if tokenizer.encode(text, add_special=False, parse_special=False) != want:
            different.append(code)
    assert different == []


def test_a_long_text_has_the_ids_of_its_short_path(
    declarations: dict[str, str], vocabulary: Callable[[str], Tokenizer]
) -> None:
    tokenizer = vocabulary("qwen2")
    text = "\n".join(text[:200] for _, text in excerpts(declarations)) + "<|im_end|>"
    assert len(text) > 20_000
    short = tokenizer.encoder().encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special=False) == short
    plain = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(plain) == tokenizer.decode(short, skip_special=False)
    assert plain[:-10] == short[: len(plain) - 10] != short
    assert tokenizer.encode("<|im_end|>", add_special=False) == short[-1:]
