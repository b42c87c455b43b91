"""Loading: the cache, hostile metadata, Hugging Face files, export for transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import ModelFileError
from headrace.formats import tokenizer_load
from headrace.formats.chat_template import ChatTemplate, encode_chat, load_chat_template
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.sources import resolve
from headrace.formats.token_pieces import byte_alphabet
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_export import export_tokenizer
from headrace.formats.tokenizer_load import load_tokenizer

TEXT = "Hello  world, 12345 naïve 漢字 🦙\n\n\tend <|im_end|>"


def test_a_second_load_reads_no_vocabulary(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = suite / "ggml-vocab-gpt-2.gguf"
    first = load_tokenizer(open_checkpoint(path), cache=tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("the vocabulary was read again")

    monkeypatch.setattr(tokenizer_load, "read_vocabulary", never)
    second = load_tokenizer(open_checkpoint(path), cache=tmp_path)
    assert second.info == first.info
    assert second.encode(TEXT) == first.encode(TEXT)


def test_a_changed_file_is_read_again(suite: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(suite / "ggml-vocab-gpt-2.gguf", path)
    assert load_tokenizer(open_checkpoint(path), cache=tmp_path / "c").name == "gpt2/gpt-2"
    shutil.copy(suite / "ggml-vocab-refact.gguf", path)
    os.utime(path, ns=(1, 1))
    assert load_tokenizer(open_checkpoint(path), cache=tmp_path / "c").name == "gpt2/refact"


@pytest.mark.parametrize("damage", ["cut json", "cut table", "empty table", "index", "no rights"])
def test_a_damaged_cache_is_not_used(damage: str, suite: Path, tmp_path: Path) -> None:
    path = suite / "ggml-vocab-gpt-2.gguf"
    cache = tmp_path / "cache"
    want = load_tokenizer(open_checkpoint(path), cache=cache).encode(TEXT)
    (table,) = cache.glob("*.table")
    (text,) = cache.glob("*.json")
    (index,) = cache.glob("*.key")
    if damage == "cut json":
        text.write_bytes(text.read_bytes()[:-5])
    elif damage == "cut table":
        table.write_bytes(table.read_bytes()[:-5])
    elif damage == "empty table":
        table.write_bytes(b"")
    elif damage == "index":
        index.write_text("../../etc/passwd")
    else:
        shutil.rmtree(cache)
        cache.write_text("a file where the directory should be")
    assert load_tokenizer(open_checkpoint(path), cache=cache).encode(TEXT) == want


@dataclass
class Metadata:
    """A GGUF checkpoint of metadata alone."""

    metadata: Mapping[str, Any]
    kind: str = "gguf"
    architecture: str = "llama"
    source: str = field(default="nowhere.gguf")


def tiny(**changes: Any) -> Metadata:
    """A byte-level vocabulary of 256 bytes, one merge and an end token; changes by short key."""
    alphabet = {b: c for c, b in byte_alphabet().items()}
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*(alphabet[b] for b in range(256)), "he", "<end>"],
        "token_type": np.array([1] * 257 + [3], dtype=np.int32),
        "merges": ["h e"],
        "eos_token_id": 257,
        **changes,
    }
    return Metadata({f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None})


def test_a_tiny_vocabulary(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny(), cache=tmp_path)
    assert tokenizer.encode("hehe<end>") == [256, 256, 257]
    assert tokenizer.encode("<end>", parse_special=False) == list(b"<end>")
    assert tokenizer.decode([256, 257]) == "he"
    assert (tokenizer.eos_ids, tokenizer.num_ids, tokenizer.add_bos) == ((257,), 258, False)


def test_padded_ids_are_no_tokens(tmp_path: Path) -> None:
    """Embedding tables are padded; the rows beyond the vocabulary can not be spoken (fault 36)."""
    base = tiny().metadata
    tokens = [*base["tokenizer.ggml.tokens"], *(f"[PAD{i}]" for i in range(258, 300))]
    types = np.array([1] * 257 + [3] + [5] * 42, dtype=np.int32)
    padded = tiny(tokens=tokens, token_type=types, padding_token_id=299)
    tokenizer = load_tokenizer(padded, cache=tmp_path)
    assert tokenizer.num_ids == 258
    assert tokenizer.pad_id is None
    assert tokenizer.encode("[PAD280]") == list(b"[PAD280]")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"model": "rwkv"}, "'rwkv' is not supported"),
        ({"model": 3}, "model is missing"),
        ({"pre": "unheard-of"}, "'unheard-of' is not supported"),
        ({"pre": None}, "does not name its pre-tokenizer"),
        ({"pre": np.array([1, 2])}, "pre must be a text"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": "text"}, "must be an array"),
        ({"token_type": np.array([1], dtype=np.int32)}, "1 entries for 258"),
        ({"token_type": ["a"] * 258}, "token_type holds 'a'"),
        ({"token_type": np.full(258, np.nan)}, "token_type holds nan"),
        ({"tokens": ["x" * 70_000] * 258}, "a token of 70000 characters"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["he"]}, "no pair"),
        ({"merges": ["h "]}, "no pair"),
        ({"eos_token_id": 258}, "eos_token_id is 258"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": "2"}, "must be an integer"),
        ({"bos_token_id": 10**9}, "bos_token_id is"),
        ({"add_bos_token": "yes"}, "true or false"),
        ({"model": "llama", "scores": None}, "scores is missing"),
        ({"model": "llama", "scores": np.array([np.nan] * 258)}, "no finite number"),
        ({"model": "llama", "scores": ["1"] * 258}, "no finite number"),
        ({"model": "llama", "scores": np.zeros(3)}, "3 entries for 258"),
    ],
)
def test_hostile_metadata_is_refused_by_key(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=rf"nowhere\.gguf: .*{words}"):
        load_tokenizer(tiny(**changes), cache=tmp_path)


def write_hf(directory: Path, tokenizer: Tokenizer, **files: Any) -> None:
    export_tokenizer(tokenizer, directory)
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value))


@dataclass
class Directory:
    """A Hugging Face checkpoint of a directory alone."""

    source: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "hf"
    architecture: str = "llama"


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "llama-spm", "phi-3"])
def test_hugging_face_files_give_the_same_tokenizer(
    name: str, vocabulary: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    original = vocabulary(name)
    write_hf(tmp_path / "hf", original)
    again = load_tokenizer(Directory(str(tmp_path / "hf")), cache=tmp_path / "c")
    assert again.num_ids == original.num_ids
    assert (again.bos_id, again.eos_id) == (original.bos_id, original.eos_id)
    assert again.add_bos == original.add_bos
    assert again.info.strip_space == original.info.strip_space
    for options in ({}, {"add_special": False}, {"parse_special": False}):
        assert again.encode(TEXT, **options) == original.encode(TEXT, **options)
    ids = original.encode(TEXT)
    assert again.decode(ids) == original.decode(ids)
    assert common_bytes(again, original)


def common_bytes(a: Tokenizer, b: Tokenizer) -> bool:
    return all(a.token_bytes(i) == b.token_bytes(i) for i in range(0, a.num_ids, 7))


def test_stop_ids_of_the_generation_config(
    vocabulary: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    write_hf(
        tmp_path / "hf",
        vocabulary("gpt-2"),
        generation_config={"eos_token_id": [50256, 198, 999_999]},
        config={"eos_token_id": 50256},
    )
    again = load_tokenizer(Directory(str(tmp_path / "hf")), cache=tmp_path / "c")
    assert again.eos_ids == (198, 50256)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer.json", None, "does not exist"),
        ("tokenizer.json", "{", "can not be read"),
        ("tokenizer.json", "[]", "not a JSON object"),
        ("tokenizer.json", '{"model": {"type": "WordPiece", "vocab": {}}}', "WordPiece"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}}}', "can not be built"),
        ("tokenizer_config.json", "[" * 100_000, "can not be read"),
    ],
)
def test_damaged_hugging_face_files(
    name: str,
    text: str | None,
    words: str,
    vocabulary: Callable[[str], Tokenizer],
    tmp_path: Path,
) -> None:
    export_tokenizer(vocabulary("gpt-2"), tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelFileError, match=words):
        load_tokenizer(Directory(str(tmp_path)), cache=tmp_path / "c")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("decoder", True),
        ("model", 2**31),
        ("model", {"type": "BPE", "vocab": {"a": None}, "merges": []}),
        ("model", {"type": "BPE", "vocab": {"a": 9_999_999}, "merges": []}),
        ("version", "\ud800"),
        ("added_tokens", 1.5),
        ("added_tokens", ["<s>"]),
        ("post_processor", "x"),
        ("post_processor", {"type": "TemplateProcessing", "single": [None]}),
        ("post_processor", {"type": "TemplateProcessing", "single": [{"SpecialToken": 1}]}),
    ],
)
def test_values_of_the_wrong_type_in_a_tokenizer_json(
    place: str, value: object, vocabulary: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    export_tokenizer(vocabulary("gpt-2"), tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {place: value}))
    with pytest.raises(ModelFileError, match=r"token"):
        load_tokenizer(Directory(str(tmp_path)), cache=tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.torch
@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "llama-spm", "phi-3"])
def test_exported_tokenizers_encode_equally_in_transformers(
    name: str, vocabulary: Callable[[str], Tokenizer], declarations: dict[str, str], tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    ours = vocabulary(name)
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {}, "t")
    export_tokenizer(ours, tmp_path, template=template, max_length=512)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert theirs.model_max_length == 512
    assert theirs.chat_template == template.source
    texts = [TEXT, "", " ", *(t[:300] for t in list(declarations.values())[::25])]
    for text in texts:
        ids = ours.encode(text)
        assert theirs.encode(text) == ids
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text, add_special=False)
        plain = [i for i in ids if not ours.is_special(i)]
        assert theirs.decode(plain) == ours.decode(plain)


@pytest.mark.models
@pytest.mark.parametrize("alias", ["smollm2-135m", "gemma3-270m"])
def test_real_models(alias: str, declarations: dict[str, str], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(resolve(alias))
    tokenizer = load_tokenizer(checkpoint, cache=tmp_path)
    for code, text in declarations.items():
        excerpt = text[:600]
        assert tokenizer.decode(tokenizer.encode(excerpt)) == excerpt, code
    template = load_chat_template(checkpoint, tokenizer)
    ids = encode_chat(tokenizer, template, [{"role": "user", "content": "Hello"}])
    if alias == "gemma3-270m":
        assert ids == [2, 105, 2364, 107, 9259, 106, 107, 105, 4368, 107]
        assert tokenizer.eos_ids == (1, 106)
    else:
        assert ids[0] == 1
        assert tokenizer.eos_ids == (0, 2)
        assert tokenizer.encode("12345") == [tokenizer.encode(d)[0] for d in "12345"]
