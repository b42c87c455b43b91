"""Drafters for tests: right, wrong and in between. The toy model is their oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence

from toy import ToyModel

from headrace.engine import sampler
from headrace.engine.generation import Generation
from headrace.engine.speculation.drafter import Ask, Draft


def continuation(model: ToyModel, generation: Generation, count: int) -> list[int]:
    """The next tokens that plain decoding will draw, past any end."""
    state = generation.sampler_state.fork(generation.index)
    constraint = None if generation.constraint is None else generation.constraint.fork()
    history = list(generation.sequence.tokens)
    tokens: list[int] = []
    for _ in range(count):
        row = model.logits(history).reshape(1, -1)
        try:
            mask = None if constraint is None else constraint.mask()
            drawn = sampler.sample(row, [state], [len(history)], model.vocab, None, [mask])[0]
            if drawn.status is not sampler.RowStatus.OK:
                break
            if constraint is not None:
                constraint.accept(drawn.token)
        except (RuntimeError, AssertionError):
            break
        state.accept(drawn.token)
        history.append(drawn.token)
        tokens.append(drawn.token)
    return tokens


class Seer:
    """Always right."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model
        self.num_asked = 0
        self.notes: list[tuple[tuple[int, int], int]] = []  # (sequence, kept)
        self.forgotten: list[tuple[int, int]] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.num_asked += len(asks)
        return [Draft(self.guess(ask)) for ask in asks]

    def guess(self, ask: Ask) -> list[int]:
        return continuation(self.model, ask.generation, ask.limit)

    def kept(self, generation: Generation, num_kept: int) -> None:
        assert generation.finish_reason is None
        self.notes.append((generation.sequence.order, num_kept))

    def forget(self, generation: Generation) -> None:
        self.forgotten.append(generation.sequence.order)


class Liar(Seer):
    """Always wrong, from the first token on."""

    def guess(self, ask: Ask) -> list[int]:
        return [(token + 1) % self.model.vocab for token in super().guess(ask)]


class AnyDrafter(Seer):
    """Right up to a random token and wrong from there on, too long, too short, made of ids that do
    not exist; now and then it fails."""

    def __init__(self, model: ToyModel, seed: int) -> None:
        super().__init__(model)
        self._random = random.Random(seed)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        if self._random.random() < 0.03:
            raise RuntimeError("no idea")
        return super().propose(asks)

    def guess(self, ask: Ask) -> list[int]:
        pick = self._random
        tokens = super().guess(ask)[: pick.choice([0, 1, 2, 3, 9])]
        if tokens and pick.random() < 0.5:
            at = pick.randrange(len(tokens))
            tokens[at] = pick.choice(
                [(tokens[at] + 1) % self.model.vocab, -1, self.model.vocab, 2**40]
            )
        return tokens + [
            pick.randrange(self.model.vocab) for _ in range(pick.choice([0, 0, 1, 5, 70]))
        ]
