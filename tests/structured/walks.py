"""Walks through compiled grammars without a model: any token that a mask allows may come next."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from headrace.formats.tokenizer import Tokenizer
from headrace.structured.compiler import CompiledGrammar
from headrace.structured.constraint import GrammarConstraint

Choose = Callable[[list[int]], int]


def allowed(constraint: GrammarConstraint, num_ids: int) -> list[int]:
    """The ids that a constraint allows now; checks the form of the mask."""
    mask = constraint.mask()
    assert mask.dtype == np.uint32
    assert len(mask) * 32 >= num_ids
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert not len(ids) or ids[-1] < num_ids
    return ids.tolist()


def walk(
    grammar: CompiledGrammar, tokenizer: Tokenizer, choose: Choose, *, most: int = 400
) -> str | None:
    """A whole text, by one chosen token after another; None when it does not end in time."""
    constraint = grammar.start()
    tokens: list[int] = []
    for _ in range(most):
        token = choose(allowed(constraint, tokenizer.num_ids))
        if token in tokenizer.eos_ids:
            return tokenizer.decode(tokens, continuation=True, skip_special=False)
        constraint.accept(token)
        tokens.append(token)
        if constraint.finished:
            return tokenizer.decode(tokens, continuation=True, skip_special=False)
    return None


def at_random(seed: int, tokenizer: Tokenizer) -> Choose:
    """Any allowed token, the end and closing marks more often than they deserve."""
    rng = random.Random(seed)
    closing = {
        i for i in range(tokenizer.num_ids) if tokenizer.token_bytes(i) in (b'"', b"}", b"]", b'"}')
    }

    def choose(ids: list[int]) -> int:
        if len(ids) > 20 and rng.random() < 0.2:
            ends = [i for i in ids if i in closing or i in tokenizer.eos_ids]
            ids = ends or ids
        return rng.choice(ids)

    return choose
