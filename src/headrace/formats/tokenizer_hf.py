"""Read a tokenizer from Hugging Face files: tokenizer.json, its config, the generation config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ModelFileError
from headrace.formats.tokenizer import TokenizerInfo
from headrace.formats.vocabulary import END_TOKENS, MAX_TOKENS

#: Every file that has a say, so that a cache knows when one changes.
HF_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)

MAX_JSON_BYTES = 256 << 20


def read_json_file(path: Path) -> dict[str, Any]:
    """One JSON object; {} when the file does not exist. Raises ModelFileError when damaged."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} can not be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is not a JSON object")
    return value


def read_hf_tokenizer(directory: Path) -> tuple[str, TokenizerInfo]:
    """(tokenizers JSON, info) of a model directory. Raises ModelFileError, naming the file."""
    path = directory / "tokenizer.json"
    document = read_json_file(path)
    if not document:
        raise ModelFileError(
            f"{path} does not exist: save the tokenizer in its fast form (tokenizer.json)"
        )
    config = read_json_file(directory / "tokenizer_config.json")
    config = {**read_json_file(directory / "special_tokens_map.json"), **config}
    generation = read_json_file(directory / "generation_config.json")
    model = read_json_file(directory / "config.json")
    ids = _text_ids(document)
    texts = {i: t for t, i in ids.items()}
    num_ids = 1 + max(texts, default=-1)
    if num_ids == 0:
        raise ModelFileError(f"{path} holds no tokens")
    special = {
        name: _named_id(config, model, f"{name}_token", ids, num_ids)
        for name in ("bos", "eos", "unk", "pad")
    }
    prefix, suffix = _template_ids(document, ids)
    bos, eos = special["bos"], special["eos"]
    if isinstance(config.get("add_bos_token"), bool) and bos is not None:
        prefix = tuple(i for i in prefix if i != bos)
        prefix = (bos, *prefix) if config["add_bos_token"] else prefix
    if isinstance(config.get("add_eos_token"), bool) and eos is not None:
        suffix = tuple(i for i in suffix if i != eos)
        suffix = (*suffix, eos) if config["add_eos_token"] else suffix
    document["post_processor"] = None  # encode() adds prefix_ids and suffix_ids itself
    document["truncation"] = document["padding"] = None
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    info = TokenizerInfo(
        name=f"hf/{config.get('tokenizer_class') or (document.get('model') or {}).get('type')}",
        num_ids=num_ids,
        bos_id=bos,
        eos_id=eos,
        unk_id=special["unk"],
        pad_id=special["pad"],
        eos_ids=_stop_ids(document, generation, model, eos, num_ids),
        prefix_ids=prefix,
        suffix_ids=suffix,
        strip_space=_strips(document),
    )
    return text, info


def _strips(document: Mapping[str, Any]) -> bool:
    from headrace.formats.token_pieces import decoding

    return decoding(document)[2]


def _text_ids(document: Mapping[str, Any]) -> dict[str, int]:
    from headrace.formats.token_pieces import model_vocab

    ids = dict(model_vocab(document))
    for token in document.get("added_tokens") or ():
        try:
            ids[str(token["content"])] = int(token["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError("tokenizer.json holds a damaged added token") from error
    if any(not 0 <= i < MAX_TOKENS for i in ids.values()):
        raise ModelFileError("tokenizer.json holds a token id out of range")
    return ids


def _named_id(
    config: Mapping[str, Any],
    model: Mapping[str, Any],
    key: str,
    ids: Mapping[str, int],
    num_ids: int,
) -> int | None:
    """A special id, by its text in the tokenizer config, else by number in config.json."""
    value = config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if isinstance(value, str):
        return ids.get(value)
    number = model.get(f"{key}_id")
    if isinstance(number, list):
        number = number[0] if number else None
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < num_ids:
        return number
    return None


def _template_ids(
    document: Mapping[str, Any], ids: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids the post-processor puts before and after a single text."""
    processor = document.get("post_processor") or {}
    steps = processor.get("processors", []) if processor.get("type") == "Sequence" else [processor]
    before: list[int] = []
    after: list[int] = []
    for step in steps:
        if step.get("type") != "TemplateProcessing":
            continue
        side = before
        for part in step.get("single") or ():
            if "Sequence" in part:
                side = after
            elif "SpecialToken" in part:
                name = part["SpecialToken"].get("id")
                entry = (step.get("special_tokens") or {}).get(name) or {}
                side.extend(entry.get("ids") or ([ids[name]] if name in ids else []))
    return tuple(before), tuple(after)


def _stop_ids(
    document: Mapping[str, Any],
    generation: Mapping[str, Any],
    model: Mapping[str, Any],
    eos: int | None,
    num_ids: int,
) -> tuple[int, ...]:
    stops = set() if eos is None else {eos}
    for source in (generation, model):
        listed = source.get("eos_token_id")
        for value in listed if isinstance(listed, list) else [listed]:
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < num_ids:
                stops.add(value)
    if not generation.get("eos_token_id"):
        for token in document.get("added_tokens") or ():
            if token.get("special") and token["content"] in END_TOKENS:
                stops.add(int(token["id"]))
    return tuple(sorted(stops))
