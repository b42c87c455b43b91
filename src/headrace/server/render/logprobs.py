"""Logprobs as the two OpenAI formats write them. JSON has no infinity: the floor is −9999.

Equal tokens have equal floats in both places, so "is the token its own most probable one" can be
decided by comparing them, as evaluation tools do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.outputs import LogprobEntry
from headrace.formats.detokenizer import Detokenizer
from headrace.formats.tokenizer import Tokenizer

FLOOR = -9999.0


def floored(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def chat_logprobs(
    entries: Sequence[LogprobEntry], num_top: int, tokenizer: Tokenizer, as_ids: bool = False
) -> list[dict[str, Any]]:
    """Chat's logprobs.content: one object per token, its num_top best beside it."""
    return [_chat_entry(entry, num_top, tokenizer, as_ids) for entry in entries]


def _chat_entry(
    entry: LogprobEntry, num_top: int, tokenizer: Tokenizer, as_ids: bool
) -> dict[str, Any]:
    objects = {
        token: {
            "token": f"token_id:{token}" if as_ids else tokenizer.token_text(token),
            "logprob": floored(item.logprob),
            "bytes": list(tokenizer.token_bytes(token)),
        }
        for token, item in entry.items()
    }
    best = sorted(entry, key=lambda token: entry[token].rank or 0)[:num_top]
    return {**objects[next(iter(entry))], "top_logprobs": [objects[token] for token in best]}


class CompletionLogprobs:
    """Completions' four parallel lists, for one choice; offsets go on from call to call.

    offset: characters of the answer before the first token.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._as_ids = as_ids
        self._stream = Detokenizer(tokenizer, skip_special=False, continuation=True)
        self._offset = 0

    def lists(
        self, tokens: Sequence[int], entries: Sequence[LogprobEntry | None]
    ) -> dict[str, Any]:
        """The next tokens. An entry is None where nothing precedes the token."""
        names, logprobs, tops, offsets = [], [], [], []
        for token, entry in zip(tokens, entries, strict=True):
            names.append(self._name(token))
            offsets.append(self._offset)
            self._offset += len(self._stream.push(token))
            logprobs.append(None if entry is None else floored(entry[token].logprob))
            tops.append(None if entry is None else self._top(entry))
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self._tokenizer.token_text(token)

    def _top(self, entry: LogprobEntry) -> dict[str, float]:
        """The chosen token first; of two tokens that read the same, the second goes by its id."""
        top: dict[str, float] = {}
        for token, item in entry.items():
            name = self._name(token)
            top[f"token_id:{token}" if name in top else name] = floored(item.logprob)
        return top
