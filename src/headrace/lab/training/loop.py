"""Trainer: the steps of one training, with validation, checkpoints and progress.

    batch(step) → objective → gradients → clip → AdamW(rate(step)) → …

State is the parameters, the moments and the step number. Nothing else carries over from step to
step, so a training that was interrupted and resumed has the bits of one that ran through (with the
same number of threads, the same torch and the same kind of processor).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from headrace.errors import HeadraceError, UsageError
from headrace.lab.training.adamw import AdamW
from headrace.lab.training.batch import Data
from headrace.lab.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from headrace.lab.training.model import Trainee
from headrace.lab.training.objective import Objective, Score, cross_entropy, score
from headrace.lab.training.schedule import learning_rate
from headrace.lab.training.settings import Settings


@dataclass(frozen=True, slots=True)
class Progress:
    """After step `step` of `steps`. loss: of the training batches since the last report. left_s:
    from the speed so far."""

    step: int
    steps: int
    loss: float
    tok_per_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """score: over the validation set, after the last step. history: (step, training loss). seconds,
    num_tokens: of this run, without what an earlier one had done."""

    score: Score
    history: list[tuple[int, float]]
    seconds: float
    num_tokens: int


@dataclass(slots=True)
class Trainer:
    """One training. `run` changes model.parameters in place."""

    model: Trainee
    data: Data
    settings: Settings
    objective: Objective = cross_entropy
    name: str = ""
    _step: int = 0
    _history: list[tuple[int, float]] = field(default_factory=list)

    def run(
        self,
        checkpoint: Path | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        stop_after: int | None = None,
    ) -> Result | None:
        """All steps that are left. checkpoint: resumed from if it exists, and kept up to date.
        stop_after: ends at that step with a checkpoint, without a result (None).

        Raises UsageError for a checkpoint that is damaged or of another training, HeadraceError
        when the loss is no longer finite.
        """
        optimizer = AdamW(
            self.model.parameters,
            betas=self.settings.betas,
            eps=self.settings.eps,
            decay=self.settings.decay,
        )
        if checkpoint is not None:
            self._resume(checkpoint, optimizer)
        first, begin, tokens = self._step, time.perf_counter(), 0
        last = self.settings.steps if stop_after is None else stop_after
        losses: list[float] = []
        while self._step < last:
            loss, count = self._one(optimizer)
            losses.append(loss)
            tokens += count
            done, spent = self._step - first, time.perf_counter() - begin
            if self._step % self.settings.report_every == 0 or self._step == last:
                mean = sum(losses) / len(losses)
                losses.clear()
                self._history.append((self._step, mean))
                left = (self.settings.steps - self._step) * spent / done
                on_progress(Progress(self._step, self.settings.steps, mean, tokens / spent, left))
            due = self._step % self.settings.save_every == 0 or self._step == last
            if checkpoint is not None and due:
                self._save(checkpoint, optimizer)
        if self._step < self.settings.steps:
            return None
        seconds = time.perf_counter() - begin
        return Result(score(self.model, self.data.validation()), self._history, seconds, tokens)

    def _one(self, optimizer: AdamW) -> tuple[float, int]:
        """One step → (its loss, its tokens)."""
        batch = self.data.batch(self._step)
        optimizer.clear()
        loss = self.objective(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters.values(), self.settings.clip)
        if not torch.isfinite(norm):
            raise HeadraceError(
                f"Step {self._step} of training {self.name}: the loss is {value} and the gradient "
                "is not finite; lower the learning rate."
            )
        optimizer.update(
            learning_rate(
                self._step,
                peak=self.settings.rate,
                warmup=self.settings.warmup,
                total=self.settings.steps,
                floor=self.settings.floor,
            )
        )
        self._step += 1
        return value, batch.tokens.size

    @property
    def fingerprint(self) -> str:
        """What makes this training another one: model, settings, and how its data begins."""
        start = self.data.batch(0)
        digest = hashlib.sha256(self.name.encode())
        digest.update(json.dumps(self.model.description, sort_keys=True, default=str).encode())
        digest.update(json.dumps(asdict(self.settings), sort_keys=True).encode())
        digest.update(start.tokens.tobytes() + start.targets.tobytes())
        digest.update(f"{torch.__version__} {torch.get_num_threads()}".encode())
        return digest.hexdigest()

    def _resume(self, path: Path, optimizer: AdamW) -> None:
        state = load_checkpoint(path, self.fingerprint)
        if state is None:
            return
        places = (self.model.parameters, optimizer.first, optimizer.second)
        stored = (state.parameters, state.first, state.second)
        for place, values in zip(places, stored, strict=True):
            if place.keys() != values.keys():
                raise UsageError(f"{path} holds other weights; remove it to start again.")
            with torch.no_grad():
                for name, tensor in place.items():
                    if tensor.shape != values[name].shape:
                        raise UsageError(f"{path}: {name} has another shape; remove the file.")
                    tensor.copy_(values[name])
        self._step = optimizer.num_updates = state.step
        self._history = [(int(step or 0), float(loss or 0)) for step, loss in state.history]

    def _save(self, path: Path, optimizer: AdamW) -> None:
        save_checkpoint(
            path,
            Checkpoint(
                self._step,
                self.fingerprint,
                [[step, loss] for step, loss in self._history],
                dict(self.model.parameters),
                optimizer.first,
                optimizer.second,
            ),
        )
