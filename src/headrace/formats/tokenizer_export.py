"""Write a tokenizer as Hugging Face files that `transformers` loads and that encode equally."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write
from headrace.formats.chat_template import ChatTemplate, special_tokens
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_json import merge_pairs


def export_tokenizer(
    tokenizer: Tokenizer,
    directory: Path,
    *,
    template: ChatTemplate | None = None,
    max_length: int | None = None,
) -> list[Path]:
    """Write tokenizer.json and tokenizer_config.json into `directory` (created if missing).

    template: stored as the chat template. max_length: the model's context. Each file appears whole.
    Returns the paths. Raises UsageError when the directory can not be written.
    """
    document = json.loads(tokenizer.to_json())
    document["post_processor"] = _post_processor(tokenizer)
    if document["model"].get("type") == "BPE":
        document["model"]["merges"] = merge_pairs(document["model"])  # the current spelling
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": tokenizer.add_bos,
        **{name: text for name, text in special_tokens(tokenizer).items() if text},
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    if template is not None:
        config["chat_template"] = template.source
    paths = []
    try:
        for name, value in (("tokenizer.json", document), ("tokenizer_config.json", config)):
            with atomic_write(directory / name) as file:
                file.write(json.dumps(value, ensure_ascii=False, indent=1).encode())
            paths.append(directory / name)
    except OSError as error:
        raise UsageError(f"{directory} can not be written: {error.strerror}") from error
    return paths


def _post_processor(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The BOS and EOS that encode() adds, in the JSON's own terms."""
    before, after = tokenizer.info.prefix_ids, tokenizer.info.suffix_ids
    if not before and not after:
        return None

    def part(token_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokenizer.token_text(token_id), "type_id": 0}}

    single = [*map(part, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(part, after)]
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second],
        "special_tokens": {
            tokenizer.token_text(i): {
                "id": tokenizer.token_text(i),
                "ids": [i],
                "tokens": [tokenizer.token_text(i)],
            }
            for i in {*before, *after}
        },
    }
