"""Oracle: ids of the real models against llama.cpp's own tokenizers, reading the same files."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.sources import resolve
from headrace.formats.tokenizer_load import load_tokenizer

CODE = "def f(x):\n    if x > 10:\n\t\treturn [x ** 2 for _ in range(1000)]  # 3.14159\n\n\n"


@pytest.mark.large
@pytest.mark.parametrize("alias", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"])
def test_ids_equal_llama_cpp(alias: str, declarations: dict[str, str], tmp_path: Path) -> None:
    import llama_cpp

    path = resolve(alias)
    ours = load_tokenizer(open_checkpoint(path), cache=tmp_path)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    texts = [CODE, *(text[:600] for text in declarations.values())]
    if alias.startswith("qwen"):  # llama.cpp does not normalise; the original tokenizer does
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    different = []
    for text in texts:
        want = theirs.tokenize(text.encode(), add_bos=False, special=True)
        if ours.encode(text, add_special=False) != want:
            different.append(text)
    assert different == []
