"""Fill in the middle: the tokens of a vocabulary that mark a gap, and the prompt built with them.

    <prefix> text before <suffix> text after <middle>   → the model writes what belongs between

Named by the GGUF file, or found by the spellings that model families use. A vocabulary can hold
them although its model was never trained on gaps (Qwen2.5 without Coder); nothing in a file tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.formats.tokenizer import Tokenizer

#: (prefix, suffix, middle) as families spell them: Qwen, CodeGemma; StarCoder, Granite; SantaCoder;
#: DeepSeek; Code Llama; GLM.
SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
#: Tokens with which such models end a filling, besides their end-of-text ids.
ENDINGS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<EOT>",
           "<|file_sep|>", "<file_sep>", "<|file_separator|>", "<|repo_name|>", "<repo_name>",
           "<reponame>")  # fmt: skip
_KEYS = (
    ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"),
    ("prefix_token_id", "suffix_token_id", "middle_token_id"),
)


@dataclass(frozen=True, slots=True)
class GapTokens:
    """The three marks, and every id that ends a filling (the marks among them)."""

    prefix_id: int
    suffix_id: int
    middle_id: int
    stop_ids: tuple[int, ...]

    def prompt(self, before: list[int], after: list[int], start: tuple[int, ...]) -> list[int]:
        """Ids that make the model write what stands between two texts. start: BOS, where the model
        wants one."""
        return [*start, self.prefix_id, *before, self.suffix_id, *after, self.middle_id]


def gap_tokens(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> GapTokens | None:
    """What a model's vocabulary offers; None = it cannot fill gaps. metadata: of its GGUF file, or
    empty."""
    marks = _named(metadata, tokenizer.num_ids) or _spelled(tokenizer)
    if marks is None:
        return None
    find = tokenizer.encoder().token_to_id
    ends = {find(text) for text in ENDINGS} - {None}
    stops = (*marks, *(token for token in ends if token is not None))
    return GapTokens(*marks, tuple(sorted(set(stops) - set(tokenizer.eos_ids))))


def _named(metadata: Mapping[str, Any], num_ids: int) -> tuple[int, int, int] | None:
    for keys in _KEYS:
        ids = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
        good = [i for i in ids if isinstance(i, int) and 0 <= i < num_ids]
        if len(set(good)) == 3:
            return good[0], good[1], good[2]
    return None


def _spelled(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    find = tokenizer.encoder().token_to_id
    for texts in SPELLINGS:
        ids = [token for text in texts if (token := find(text)) is not None]
        if len(ids) == 3 and max(ids) < tokenizer.num_ids:
            return ids[0], ids[1], ids[2]
    return None
