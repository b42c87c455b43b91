"""What to send: prompts as token ids, text or messages, with the lengths that were asked for.

Token ids give exact lengths on /v1/completions without a tokenizer here. Every random prompt
differs from every other, so no prefix cache can answer it; `prefix_repetition` shares on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import UsageError

DATASETS = ("random", "prefix_repetition", "file", "sharegpt")
#: Ids that are ordinary tokens in the vocabularies we know: special and byte tokens lie below, and
#: no vocabulary in use is smaller.
DEFAULT_IDS = (1000, 30_000)

#: Short English words; in common vocabularies each is one token when a space stands before it.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team minute idea body back parent face level office door health "
    "person art war history party result change morning reason research girl guy moment air teacher"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """content: ids, text, or messages of a chat. num_prompt: tokens asked for (None = whatever the
    content has). max_tokens: of the output (None = the server's default)."""

    content: list[int] | str | list[dict[str, Any]]
    num_prompt: int | None
    max_tokens: int | None

    @property
    def is_chat(self) -> bool:
        return bool(self.content) and isinstance(self.content[0], dict)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Uniform in [length · (1 − ratio), length · (1 + ratio)], for prompts and for outputs."""

    num_prompt: int = 128
    num_output: int = 64
    ratio: float = 0.0

    def __post_init__(self) -> None:
        for flag, value, low in (
            ("--random-input-len", self.num_prompt, 1), ("--random-output-len", self.num_output, 1)
        ):  # fmt: skip
            if not low <= value <= 1 << 20:
                raise UsageError(f"{flag} must be {low} … {1 << 20}, not {value}.")
        if not 0 <= self.ratio < 1:
            raise UsageError(f"--random-range-ratio must be 0 … below 1, not {self.ratio:g}.")

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """One prompt's and one output's."""
        return _around(self.num_prompt, self.ratio, rng), _around(self.num_output, self.ratio, rng)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`prefix_repetition`: num_prefixes different beginnings, each shared by its part of the
    prompts, then a suffix of its own."""

    num_prefixes: int = 10
    prefix_len: int = 256
    suffix_len: int = 256

    def __post_init__(self) -> None:
        for flag, value, low in (
            ("--prefix-repetition-num-prefixes", self.num_prefixes, 1),
            ("--prefix-repetition-prefix-len", self.prefix_len, 1),
            ("--prefix-repetition-suffix-len", self.suffix_len, 0),
        ):
            if not low <= value <= 1 << 20:
                raise UsageError(f"{flag} must be {low} … {1 << 20}, not {value}.")


@dataclass(frozen=True, slots=True)
class Source:
    """Makes content of a wanted length: ids in [low, high), or words (about one token each;
    `discovery.exact_lengths` makes them exact), which a chat wraps in a message."""

    words: bool
    chat: bool = False
    ids: tuple[int, int] = DEFAULT_IDS

    def content(self, length: int, rng: random.Random) -> list[int] | str:
        """Random content of `length` tokens."""
        if self.words:
            return " ".join(rng.choices(_WORDS.split(), k=length))
        return rng.choices(range(*self.ids), k=length)

    def joined(self, first: list[int] | str, second: list[int] | str) -> list[int] | str:
        """One after the other."""
        if isinstance(first, str) and isinstance(second, str):
            return f"{first} {second}" if second else first
        assert isinstance(first, list)
        assert isinstance(second, list)
        return first + second

    def prompt(self, content: list[int] | str, num_prompt: int, max_tokens: int | None) -> Prompt:
        """Content as a prompt of its kind."""
        if self.chat:
            return Prompt([{"role": "user", "content": content}], num_prompt, max_tokens)
        return Prompt(content, num_prompt, max_tokens)


def random_prompts(count: int, lengths: Lengths, source: Source, seed: int) -> list[Prompt]:
    """`count` prompts, all different; the same for the same seed."""
    rng = random.Random(f"random {seed}")
    prompts = []
    for _ in range(count):
        num_prompt, num_output = lengths.draw(rng)
        prompts.append(source.prompt(source.content(num_prompt, rng), num_prompt, num_output))
    return prompts


def repeated_prefixes(
    count: int, prefixes: Prefixes, num_output: int, source: Source, seed: int
) -> list[Prompt]:
    """Prompt i begins with prefix i mod num_prefixes."""
    rng = random.Random(f"prefixes {seed}")
    beginnings = [source.content(prefixes.prefix_len, rng) for _ in range(prefixes.num_prefixes)]
    length = prefixes.prefix_len + prefixes.suffix_len
    prompts = []
    for index in range(count):
        suffix = source.content(prefixes.suffix_len, rng)
        content = source.joined(beginnings[index % len(beginnings)], suffix)
        prompts.append(source.prompt(content, length, num_output))
    return prompts


def chosen(
    prompts: Sequence[Prompt], count: int | None, max_tokens: int | None, seed: int
) -> list[Prompt]:
    """`count` of a file's prompts (None = all): in order while there are enough, then again from
    the start in a shuffled order. max_tokens: for those that say none."""
    rng = random.Random(f"file {seed}")
    wanted = len(prompts) if count is None else count
    order = list(range(len(prompts)))
    picks: list[int] = []
    while len(picks) < wanted:
        picks += order[: wanted - len(picks)]
        rng.shuffle(order)
    return [
        prompts[i] if prompts[i].max_tokens is not None or max_tokens is None
        else replace(prompts[i], max_tokens=max_tokens)
        for i in picks
    ]  # fmt: skip


def _around(length: int, ratio: float, rng: random.Random) -> int:
    return max(1, rng.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))
