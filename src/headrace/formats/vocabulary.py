"""Vocabulary: tokens, their kinds, ranks and special ids, read from GGUF metadata and checked.

Between the file (`checkpoint.metadata`) and the tokenizer that is built from it
(`tokenizer_json.py`). Everything hostile is refused here: wrong types, lengths that disagree, ids
out of range, non-finite scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ModelFileError
from headrace.formats.pretokenizers import PRE_BY_ARCHITECTURE, PRE_TOKENIZERS

#: GGUF token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

MAX_TOKENS = 2_000_000
MAX_MERGES = 8_000_000
#: The longest tokens in use have about 250 characters; deriving merges takes their square.
MAX_TOKEN_CHARACTERS = 1024

_PREFIX = "tokenizer.ggml."

#: Control tokens that end a turn or a text, whatever the file lists as its EOS.
END_TOKENS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|EOT|>",
        "<end_of_turn>",
        "<turn|>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
        "</s>",
        "<eos>",
    }
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One vocabulary as its file gives it.

    kind: "byte-level" (byte-level BPE), "spm" (SentencePiece BPE: scores rank the merges) or
    "spm-merges" (the same spelling with an explicit merge list). tokens [num_ids], types [num_ids]
    (GGUF token types), scores [num_ids] (spm only), merges (left, right) best first. num_ids leaves
    out ids that only pad the embedding table. eos_ids: every id that ends generation.
    """

    name: str
    kind: str
    pre: str | None
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[tuple[str, str]]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    rstrip_special: bool

    @property
    def num_ids(self) -> int:
        """Ids that are tokens: 0 … num_ids - 1."""
        return len(self.tokens)


def read_vocabulary(metadata: Mapping[str, Any], architecture: str) -> Vocabulary:
    """Read and check the `tokenizer.ggml.*` keys. Raises ModelFileError, naming the key."""
    model = _text(metadata, "model")
    kind = {"gpt2": "byte-level", "llama": "spm", "gemma4": "spm-merges"}.get(model)
    if kind is None:
        raise ModelFileError(
            f"the tokenizer model {model!r} is not supported (supported: gpt2, llama, gemma4)"
        )
    pre = _pre_name(metadata, architecture) if kind == "byte-level" else None
    tokens = [str(t) for t in _array(metadata, "tokens", MAX_TOKENS)]
    if not tokens:
        raise ModelFileError("tokenizer.ggml.tokens is empty")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_CHARACTERS:
        raise ModelFileError(
            f"tokenizer.ggml.tokens holds a token of {longest} characters; "
            f"the limit is {MAX_TOKEN_CHARACTERS}"
        )
    types = _types(metadata, len(tokens))
    num_ids = _without_padding(tokens, types)
    if num_ids < len(tokens):
        tokens, types = tokens[:num_ids], types[:num_ids]
    scores = _scores(metadata, num_ids) if kind == "spm" else []
    merges = [] if kind == "spm" else _merges(metadata)

    spm = kind == "spm"
    default_bos, default_eos = (1, 2) if spm else (None, None)
    bos_id = _special_id(metadata, "bos_token_id", num_ids, default_bos)
    eos_id = _special_id(metadata, "eos_token_id", num_ids, default_eos)
    add_bos_default = True if kind != "byte-level" else PRE_TOKENIZERS[pre or ""].add_bos
    return Vocabulary(
        name=f"{model}/{pre}" if pre else model,
        kind=kind,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=merges,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=_special_id(metadata, "unknown_token_id", num_ids, 0 if spm else None),
        pad_id=_special_id(metadata, "padding_token_id", num_ids, None),
        eos_ids=_stop_ids(metadata, tokens, types, eos_id),
        add_bos=_flag(metadata, "add_bos_token", add_bos_default) and bos_id is not None,
        add_eos=_flag(metadata, "add_eos_token", False) and eos_id is not None,
        add_space_prefix=_flag(metadata, "add_space_prefix", spm),
        rstrip_special=_strips_after_special(metadata),
    )


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, str):
        raise ModelFileError(f"{_PREFIX}{key} is missing: the file holds no tokenizer")
    return value


def _pre_name(metadata: Mapping[str, Any], architecture: str) -> str:
    pre = metadata.get(_PREFIX + "pre")
    if pre is not None and not isinstance(pre, str):
        raise ModelFileError(f"{_PREFIX}pre must be a text")
    if pre is None or pre == "default":
        pre = PRE_BY_ARCHITECTURE.get(architecture)
        if pre is None:
            raise ModelFileError(
                "the file does not name its pre-tokenizer (tokenizer.ggml.pre), so text would be "
                "cut wrongly: convert the model again with a current converter"
            )
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelFileError(f"the pre-tokenizer {pre!r} is not supported (supported: {known})")
    return pre


def _array(metadata: Mapping[str, Any], key: str, limit: int) -> Sequence[Any]:
    value = metadata.get(_PREFIX + key)
    if value is None:
        raise ModelFileError(f"{_PREFIX}{key} is missing: the file holds no usable tokenizer")
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise ModelFileError(f"{_PREFIX}{key} must be an array")
    if len(value) > limit:
        raise ModelFileError(f"{_PREFIX}{key} has {len(value)} entries; the limit is {limit}")
    result: Sequence[Any] = value.tolist() if hasattr(value, "tolist") else value
    return result


def _types(metadata: Mapping[str, Any], num_tokens: int) -> list[int]:
    if metadata.get(_PREFIX + "token_type") is None:
        return [NORMAL] * num_tokens
    types = [_token_type(t) for t in _array(metadata, "token_type", MAX_TOKENS)]
    if len(types) != num_tokens:
        raise ModelFileError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {num_tokens} tokens"
        )
    return types


def _token_type(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelFileError(f"{_PREFIX}token_type holds {value!r:.80}, which is no integer")
    return value


def _scores(metadata: Mapping[str, Any], num_ids: int) -> list[float]:
    scores = _array(metadata, "scores", MAX_TOKENS)
    if len(scores) < num_ids:
        raise ModelFileError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {num_ids} tokens"
        )
    if not all(isinstance(s, int | float) and math.isfinite(s) for s in scores):
        raise ModelFileError("tokenizer.ggml.scores holds a value that is no finite number")
    return [float(s) for s in scores[:num_ids]]


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line in _array(metadata, "merges", MAX_MERGES):
        # A token may itself start with the separator (runs of spaces in gemma4), hence from 1.
        cut = str(line).find(" ", 1)
        if cut < 1 or cut + 1 >= len(line):
            raise ModelFileError(f"tokenizer.ggml.merges holds no pair in {line!r:.80}")
        pairs.append((line[:cut], line[cut + 1 :]))
    return pairs


def _without_padding(tokens: Sequence[str], types: Sequence[int]) -> int:
    """Ids before the trailing run of placeholders `[PADn]` that only pad the embedding table."""
    n = len(tokens)
    while n > 0 and types[n - 1] not in (NORMAL, BYTE) and tokens[n - 1] == f"[PAD{n - 1}]":
        n -= 1
    return n


def _special_id(
    metadata: Mapping[str, Any], key: str, num_ids: int, default: int | None
) -> int | None:
    value = metadata.get(_PREFIX + key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelFileError(f"{_PREFIX}{key} must be an integer")
    if not 0 <= value < num_ids:
        if key not in ("bos_token_id", "eos_token_id"):
            return None  # padding tokens often point at a padded id: harmless, never used
        raise ModelFileError(f"{_PREFIX}{key} is {value}; the vocabulary has ids 0 … {num_ids - 1}")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, bool | int):
        raise ModelFileError(f"{_PREFIX}{key} must be true or false")
    return bool(value)


def _stop_ids(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], eos_id: int | None
) -> tuple[int, ...]:
    """The EOS, the file's end-of-turn ids, and control tokens that are known to end a turn."""
    ids = set() if eos_id is None else {eos_id}
    for key in ("eot_token_id", "eom_token_id"):
        extra = _special_id(metadata, key, len(tokens), None)
        if extra is not None:
            ids.add(extra)
    control = [i for i, t in enumerate(types) if t == CONTROL]
    ids.update(i for i in control if tokens[i] in END_TOKENS)
    texts = {tokens[i] for i in ids}
    if "<|return|>" in texts or any(tokens[i] == "<|return|>" for i in control):
        # The harmony format ends messages with <|end|> and turns with <|return|>, <|call|>.
        ids = {i for i in ids if tokens[i] != "<|end|>"}
        ids.update(i for i in control if tokens[i] in ("<|return|>", "<|call|>"))
    return tuple(sorted(ids))


def _strips_after_special(metadata: Mapping[str, Any]) -> bool:
    """Phi-3 drops blanks after its control tokens; only the model's name tells."""
    name = str(metadata.get("general.name", "")).lower()
    return "phi-3" in name or "phi3" in name
