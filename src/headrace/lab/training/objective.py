"""What a training makes small. An objective is any function of a Trainee and a TokenBatch that
gives one differentiable number; distillation, for example, is another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.lab.training.batch import TokenBatch
from headrace.lab.training.model import Trainee

Objective = Callable[[Trainee, TokenBatch], Tensor]


def cross_entropy(model: Trainee, batch: TokenBatch) -> Tensor:
    """Mean negative log-likelihood of the scored targets, in nats."""
    logits = model.logits(torch.from_numpy(batch.tokens))
    targets = torch.from_numpy(batch.targets).reshape(-1)
    return functional.cross_entropy(logits, targets, ignore_index=-1)


@dataclass(frozen=True, slots=True)
class Score:
    """loss: mean negative log-likelihood in nats. num_right: targets that were the most likely
    token. Both over num_scored targets."""

    loss: float
    num_right: int
    num_scored: int

    @property
    def accuracy(self) -> float:
        return self.num_right / self.num_scored


@torch.no_grad()
def score(model: Trainee, batches: Iterable[TokenBatch]) -> Score:
    """Over all batches. Sums in float64."""
    total, right, scored = 0.0, 0, 0
    for batch in batches:
        logits = model.logits(torch.from_numpy(batch.tokens))
        targets = torch.from_numpy(batch.targets).reshape(-1)
        chosen = targets >= 0
        nll = functional.cross_entropy(logits[chosen], targets[chosen], reduction="none")
        total += float(nll.double().sum())
        right += int((logits[chosen].argmax(dim=1) == targets[chosen]).sum())
        scored += int(chosen.sum())
    assert scored, "a validation set without targets"
    return Score(total / scored, right, scored)
