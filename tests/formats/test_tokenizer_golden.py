"""Golden: token ids of real vocabularies against ids recorded by other implementations.

Source: the conformance files of llama.cpp (inside the llama-cpp-python 0.3.36 source archive),
recorded from the original tokenizers. Of its 19 vocabularies 17 load here; 15 have golden ids, two
of those not supported: bert-bge (WordPiece) and nomic-bert-moe (Unigram) belong to encoders.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from text_data import golden_cases

from headrace.errors import ModelFileError
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_json import build_tokenizer_json, merge_pairs
from headrace.formats.tokenizer_load import load_tokenizer
from headrace.formats.vocabulary import USER_DEFINED, read_vocabulary

SUPPORTED = (
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)
WITHOUT_GOLDENS = ("baichuan", "gpt-neox")
REFUSED = {
    "bert-bge": "bert",
    "nomic-bert-moe": "t5",
    "aquila": "does not name its pre-tokenizer",
}


def test_the_lists_cover_the_suite(suite: Path) -> None:
    names = {p.name[len("ggml-vocab-") : -len(".gguf")] for p in suite.glob("*.gguf")}
    assert names == {*SUPPORTED, *WITHOUT_GOLDENS, *REFUSED}
    goldens = {p.name[len("ggml-vocab-") : -len(".gguf.inp")] for p in suite.glob("*.inp")}
    assert goldens == {*SUPPORTED, "bert-bge"}


@pytest.mark.parametrize("name", SUPPORTED)
def test_golden_ids(name: str, suite: Path, vocabulary: Callable[[str], Tokenizer]) -> None:
    tokenizer = vocabulary(name)
    cases = golden_cases(suite, name)
    assert len(cases) >= 46
    for text, want in cases:
        assert tokenizer.encode(text, add_special=False, parse_special=False) == want, repr(text)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unsupported_vocabularies_are_refused_by_name(
    name: str, suite: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=REFUSED[name]):
        load_tokenizer(open_checkpoint(suite / f"ggml-vocab-{name}.gguf"), cache=tmp_path)


@pytest.mark.parametrize("name", [*SUPPORTED, *WITHOUT_GOLDENS])
def test_golden_texts_survive_the_round_trip(
    name: str, suite: Path, vocabulary: Callable[[str], Tokenizer]
) -> None:
    tokenizer = vocabulary(name)
    normal = "NFC" in tokenizer.to_json()[:200_000].split('"model"')[0]
    for text, _ in golden_cases(suite, name if name in SUPPORTED else "gpt-2"):
        want = unicodedata.normalize("NFC", text) if normal else text
        ids = tokenizer.encode(text, parse_special=False)
        assert tokenizer.decode(ids) == want, repr(text)


def test_merges_derived_from_scores_equal_the_original_list(suite: Path) -> None:
    """Gemma 4's file brings the original merges; from its tokens alone the same list must come.

    Scores as Gemma 3's file has them: user-defined tokens -1000; id 494, the first normal one, 0;
    each further one less by 1.
    """
    checkpoint = open_checkpoint(suite / "ggml-vocab-gemma-4.gguf")
    vocab = read_vocabulary(checkpoint.metadata, checkpoint.architecture)
    user_defined = {i for i, t in enumerate(vocab.tokens) if t and not t.strip("\n\t\u2581")}
    user_defined -= {i for i in user_defined if len(vocab.tokens[i]) == 1 and i > 256_000}
    derived = replace(
        vocab,
        kind="spm",
        merges=[],
        types=[USER_DEFINED if i in user_defined else t for i, t in enumerate(vocab.types)],
        scores=[-1000.0 if i in user_defined else float(494 - i) for i in range(vocab.num_ids)],
    )
    merges = merge_pairs(json.loads(build_tokenizer_json(derived))["model"])
    assert len(merges) == 514_906
    assert merges == list(vocab.merges)
