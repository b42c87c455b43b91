"""Situations: one text, computed in the ways in which a server computes texts.

The text under test is forced: after its prompt the engine may draw nothing but the text's own next
token, so that a wrong logit never leads to another text and every position can be compared. What
happens around it differs: it runs alone, in pieces, beside others, from a cache, with guesses.

Everything goes through real engines of a `verify` subject, with the subject's fault, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.sampler import TokenMask
from headrace.verify.probe import GREEDY, Probe
from headrace.verify.result import Logits
from headrace.verify.subject import Subject

#: Of the prompt: more than four blocks of 16, ends inside one. And of what is decoded after it.
PROMPT, DECODED = 72, 24
#: Positions that the prompt goes beyond the widest window, where there is one.
_PAST_WINDOW = 40
_PIECE = 23
#: Of a prompt, roughly.
_MOST_POSITIONS = 90
_SEEDED = SamplingParams(temperature=1.5, ignore_eos=True, seed=3)


class Forced:
    """A constraint (engine/constraint.py) under which exactly these tokens are drawn."""

    def __init__(self, tokens: Sequence[int], num_ids: int) -> None:
        self._tokens = list(tokens)
        self._num_ids = num_ids
        self._at = 0

    def mask(self) -> TokenMask | None:
        mask = np.zeros(self._num_ids // 32 + 1, np.uint32)
        token = self._tokens[self._at]
        mask[token >> 5] = 1 << (token & 31)
        return mask

    def accept(self, token: int) -> None:
        self._at += 1

    def fork(self) -> Forced:
        copy = Forced(self._tokens, self._num_ids)
        copy._at = self._at
        return copy

    @property
    def finished(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Text:
    """tokens: prompt, then what is forced. num_prompt: of the prompt. others: prompts of
    neighbours. long: one that needs more blocks than the text ever does. positions: whose logits
    are looked at: all that draw a token, and of a long prompt some."""

    tokens: tuple[int, ...]
    num_prompt: int
    others: tuple[tuple[int, ...], ...]
    long: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def prompt(self) -> list[int]:
        return list(self.tokens[: self.num_prompt])

    @property
    def decoded(self) -> list[int]:
        return list(self.tokens[self.num_prompt :])


@dataclass(frozen=True, slots=True)
class Seen:
    """logits: position → logits float32 [V] that follow it. tokens: drawn where nothing is forced.
    error: what was raised, or why the
    request ended, or None."""

    logits: Mapping[int, Logits]
    tokens: tuple[int, ...] = ()
    error: str | None = None


def text_for(subject: Subject) -> Text:
    """A part of the subject's text, long enough to leave the widest window."""
    source = subject.workload.text
    windows = [g.window for g in subject.program.kv_groups if g.window is not None]
    num_prompt = max([PROMPT, *(window + _PAST_WINDOW for window in windows)])
    num_prompt = min(num_prompt, len(source) - DECODED)
    others = tuple(tuple(source[13 * i : 13 * i + 9 + 17 * (i % 4)]) for i in range(1, 8))
    tokens = tuple(source[: num_prompt + DECODED])
    positions = set(range(0, num_prompt, max(1, num_prompt // _MOST_POSITIONS)))
    positions |= {w + d for w in windows for d in (-1, 0, 1) if w + d < num_prompt}
    positions |= set(range(num_prompt - 1, len(tokens)))
    long = (*tokens[7:], *tokens[:7])
    return Text(tokens, num_prompt, others, long, tuple(sorted(positions)))


def observe(
    subject: Subject,
    text: Text,
    *,
    beside: int = 0,
    joining: bool = False,
    fusion: bool = True,
    piece: int | None = None,
) -> Seen:
    """The text in an engine. beside: so many neighbours start with it. joining: a longer one is
    there before it and leaves soon, others come and go while it runs. piece: tokens per step at
    most."""
    options: dict[str, Any] = {} if piece is None else {"max_num_batched_tokens": piece}
    model = None if fusion else subject.model(subject.max_model_len, fusion=False)
    engine, probe = subject.engine(text.positions, model=model, **options)
    if joining:
        engine.add(list(text.long), GREEDY.replace(max_tokens=5))
    request = engine.add(
        text.prompt,
        GREEDY.replace(max_tokens=len(text.decoded)),
        constraint=Forced(text.decoded, subject.num_ids),
    )
    for prompt in text.others[:beside]:
        engine.add(list(prompt), GREEDY.replace(max_tokens=DECODED))
    while engine.has_work:
        engine.step()
        if joining and engine.num_steps % 4 == 2 and engine.num_steps < 24:
            number = engine.num_steps // 4
            engine.add(list(text.others[number]), GREEDY.replace(max_tokens=2 + number))
    return _seen(probe, request)


def sampled(subject: Subject, text: Text) -> Seen:
    """A seeded, sampled continuation behind a neighbour: nothing is forced."""
    engine, _ = subject.engine()
    engine.add(list(text.others[0]), GREEDY.replace(max_tokens=DECODED))
    request = engine.add(text.prompt, _SEEDED.replace(max_tokens=DECODED))
    while engine.has_work:
        engine.step()
    return Seen({}, tuple(request.generations[0].token_ids))


def found(subject: Subject, text: Text, *, restored: bool = False) -> Seen:
    """Most of the prompt is found in the prefix tree, left inside a block. restored: by an engine
    that read the tree from disk."""
    size = subject.block_size
    shared = len(text.prompt) // size * size - size // 2 - 1
    tail = [text.others[0][0]]  # short: layers with a window keep little of what is behind it
    engine, probe = _with_tree(subject, text)
    # What restores comes in whole blocks: the very prompt; else one that leaves inside a block.
    first = text.prompt if restored else text.prompt[:shared] + tail
    _finish(engine, first)
    if restored:
        with TemporaryDirectory() as name:
            engine.cache.save(Path(name))
            engine, probe = _with_tree(subject, text)
            engine.cache.restore(Path(name))
    request = engine.add(
        text.prompt,
        GREEDY.replace(max_tokens=len(text.decoded)),
        constraint=Forced(text.decoded, subject.num_ids),
    )
    while engine.has_work:
        engine.step()
    if not request.num_cached_tokens:
        raise RuntimeError("nothing of the prompt was found in the cache")
    return _seen(probe, request)


def guessed(subject: Subject, text: Text) -> Seen:
    """A prompt that repeats itself, continued with drafts looked up in it. The text is not
    forced, but sampled with a seed, so that guesses go wrong as they do."""
    part = text.prompt[: PROMPT * 2 // 3]
    prompt = [*part, *part][: PROMPT + 20]
    engine, probe = subject.engine(speculative="ngram", num_draft_tokens=5)
    request = engine.add(prompt, _SEEDED.replace(temperature=0.7, max_tokens=2 * DECODED))
    while engine.has_work:
        engine.step()
    return replace(_seen(probe, request), tokens=tuple(request.generations[0].token_ids))


#: Every situation by its name; "alone" is what the others must equal.
SITUATIONS: Mapping[str, Callable[[Subject, Text], Seen]] = {
    "alone": observe,
    "in pieces": partial(observe, piece=_PIECE),
    "2 at once": partial(observe, beside=1),
    "8 at once": partial(observe, beside=7),
    "come and go": partial(observe, joining=True),
    "cached": found,
    "restored": partial(found, restored=True),
    "guesses": guessed,
    "unfused": partial(observe, fusion=False),
    "sampled": sampled,
}


def see(subject: Subject, name: str, text: Text) -> Seen:
    """A situation by name. What raises is seen, too: a fault may break a step."""
    try:
        return SITUATIONS[name](subject, text)
    except Exception as error:
        return Seen({}, (), f"{type(error).__name__}: {error}")


def _with_tree(subject: Subject, text: Text) -> tuple[Engine, Probe]:
    return subject.engine(text.positions, enable_prefix_caching=True)


def _finish(engine: Engine, prompt: list[int]) -> None:
    engine.add(prompt, GREEDY.replace(max_tokens=1))
    while engine.has_work:
        engine.step()


def _seen(probe: Probe, request: Request) -> Seen:
    rows = {p: row for (r, _, p), row in probe.rows_seen.items() if r == request.request_id}
    return Seen(rows, error=request.generations[0].error)
