"""Prompts and arrival times from files: JSON Lines, ShareGPT conversations, traces.

Each line is checked when it is read; an error names the file, the line and what is missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.bench.serve.dataset import Prompt, Source
from headrace.errors import UsageError

_LONGEST = 1 << 20
#: A trace's hash ids stand for runs of so many tokens (the format of the Mooncake traces).
HASH_BLOCK = 512
#: A trace's times lie below: the year 33,658 in milliseconds.
MAX_TIME = 1e15


def read_prompts(path: Path) -> list[Prompt]:
    """`--dataset-name file`: lines with "prompt" (text or token ids) or "messages", and perhaps
    "max_tokens" (or "output_len"). Raises UsageError."""
    prompts = []
    for where, entry in _entries(path):
        content = entry.get("messages", entry.get("prompt"))
        prompts.append(
            Prompt(
                _content(where, content), None, _length(where, entry, "max_tokens", "output_len")
            )
        )
    return _some(path, prompts)


def read_sharegpt(path: Path) -> list[Prompt]:
    """`--dataset-name sharegpt`: a JSON array or lines with "conversations" of {"from", "value"};
    the first turn that is a person's becomes the prompt. Raises UsageError."""
    prompts = []
    for where, entry in _entries(path):
        turns = entry.get("conversations", entry.get("conversation"))
        if not isinstance(turns, list):
            raise UsageError(f'{where} has no list "conversations".')
        said = next(
            (
                turn.get("value")
                for turn in turns
                if isinstance(turn, dict) and turn.get("from") in ("human", "user")
            ),
            None,
        )
        if isinstance(said, str) and said.strip():
            prompts.append(Prompt(said, None, None))
    return _some(path, prompts)


def read_trace(path: Path, source: Source, seed: int) -> list[tuple[float, Prompt]]:
    """`--trace`: lines with a time, "timestamp" in milliseconds or "offset_s" in seconds, then
    "input_length" and "output_length", or "prompt"/"messages" and "max_tokens". "hash_ids": equal
    ids are equal runs of 512 tokens, so that prefixes repeat as they did. Offsets are from the
    first line, in order of time. Raises UsageError."""
    timed = []
    for index, (where, entry) in enumerate(_entries(path)):
        num_output = _length(where, entry, "output_length", "output_len", "max_tokens")
        content = entry.get("messages", entry.get("prompt"))
        if content is not None:
            prompt = Prompt(_content(where, content), None, num_output)
        else:
            length = _length(where, entry, "input_length", "input_len")
            if length is None:
                raise UsageError(f'{where} has neither "input_length" nor "prompt".')
            made = _trace_content(where, entry, length, source, f"trace {seed} {index}")
            prompt = source.prompt(made, length, num_output)
        timed.append((_time_s(where, entry), prompt))
    if not timed:
        raise UsageError(f"{path} has no requests.")
    timed.sort(key=lambda pair: pair[0])
    first = timed[0][0]
    return [(time_s - first, prompt) for time_s, prompt in timed]


def _trace_content(
    where: str, entry: dict[str, Any], length: int, source: Source, own: str
) -> list[int] | str:
    """Runs by hash id, then what is missing from a seed of its own."""
    hashes = entry.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(isinstance(h, int) for h in hashes):
        raise UsageError(f'{where}: "hash_ids" must be a list of whole numbers.')
    content: list[int] | str = "" if source.words else []
    left = length
    for hash_id in hashes:
        if left <= 0:
            break
        run = source.content(min(HASH_BLOCK, left), random.Random(f"hash {hash_id}"))
        content = source.joined(content, run) if content else run
        left -= HASH_BLOCK
    if left > 0:
        rest = source.content(left, random.Random(own))
        content = source.joined(content, rest) if content else rest
    return content


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of every line, or of every element when the file is one JSON array."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}.") from None
    if text.lstrip()[:1] == "[":
        parts = [(f"{path}, entry {i}", entry) for i, entry in enumerate(_json(str(path), text))]
    else:
        parts = [
            (f"{path}, line {i}", _json(f"{path}, line {i}", line))
            for i, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    for where, entry in parts:
        if not isinstance(entry, dict):
            raise UsageError(f"{where} is not a JSON object.")
        yield where, entry


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}.") from None


def _content(where: str, content: object) -> Any:
    if isinstance(content, str) and content:
        return content
    if isinstance(content, list) and content:
        ids = all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in content)
        if ids or all(isinstance(m, dict) and "role" in m for m in content):
            return content
    raise UsageError(
        f'{where} needs "prompt" (text or token ids) or "messages" (each with a role), not empty.'
    )


def _length(where: str, entry: dict[str, Any], *names: str) -> int | None:
    name = next((n for n in names if entry.get(n) is not None), None)
    if name is None:
        return None
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST:
        raise UsageError(f'{where}: "{name}" must be a whole number 1 … {_LONGEST}, not {value!r}.')
    return value


def _time_s(where: str, entry: dict[str, Any]) -> float:
    for name, scale in (("offset_s", 1.0), ("timestamp", 1e-3)):
        value = entry.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME:
            return value * scale
    raise UsageError(f'{where} needs "timestamp" (milliseconds) or "offset_s" (seconds).')


def _some(path: Path, prompts: list[Prompt]) -> list[Prompt]:
    if not prompts:
        raise UsageError(f"{path} has no prompts.")
    return prompts
