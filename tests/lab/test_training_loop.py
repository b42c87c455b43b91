"""Optimizer, schedule, checkpoints and the loop."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from training_models import llama, random_batch

from headrace.errors import HeadraceError, UsageError
from headrace.lab.training.adamw import AdamW
from headrace.lab.training.batch import TokenBatch
from headrace.lab.training.loop import Progress, Trainer
from headrace.lab.training.model import Trainee
from headrace.lab.training.schedule import learning_rate
from headrace.lab.training.settings import Settings

pytestmark = pytest.mark.torch


class Fresh:
    """Another random batch at every step."""

    def batch(self, step: int) -> TokenBatch:
        return random_batch(step)

    def validation(self) -> Iterator[TokenBatch]:
        yield random_batch(10_000)


class Same(Fresh):
    """One batch for ever."""

    def batch(self, step: int) -> TokenBatch:
        return random_batch(0)

    def validation(self) -> Iterator[TokenBatch]:
        yield random_batch(0)


def weights(model: Trainee) -> dict[str, bytes]:
    return {n: p.detach().numpy().tobytes() for n, p in model.parameters.items()}


def test_the_optimizer_is_torchs():
    generator = torch.Generator().manual_seed(1)
    start = {"matrix": torch.randn(5, 4, generator=generator), "vector": torch.ones(4)}
    ours = {n: t.clone().requires_grad_() for n, t in start.items()}
    theirs = {n: t.clone().requires_grad_() for n, t in start.items()}
    own = AdamW(ours, betas=(0.8, 0.97), eps=1e-7, decay=0.3)
    oracle = torch.optim.AdamW(
        [
            {"params": [theirs["matrix"]], "weight_decay": 0.3},
            {"params": [theirs["vector"]], "weight_decay": 0.0},
        ],
        betas=(0.8, 0.97), eps=1e-7,
    )  # fmt: skip
    for step in range(20):
        rate = 0.1 / (step + 1)
        for n in start:
            gradient = torch.randn(start[n].shape, generator=generator) * 10.0 ** (step % 5 - 3)
            ours[n].grad, theirs[n].grad = gradient.clone(), gradient.clone()
        for group in oracle.param_groups:
            group["lr"] = rate
        own.update(rate)
        oracle.step()
        for n in start:
            assert torch.allclose(ours[n], theirs[n], rtol=1e-6, atol=1e-7), (step, n)
    assert not torch.equal(ours["matrix"], start["matrix"])


def test_the_schedule_climbs_and_falls():
    rates = [learning_rate(s, peak=2.0, warmup=4, total=12, floor=0.25) for s in range(12)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[7] == pytest.approx(0.5 + 1.5 * 0.5)  # half of the way down
    assert rates[11] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(rates[3:]))
    assert learning_rate(0, peak=1.0, warmup=0, total=1, floor=1.0) == 1.0


def test_one_batch_is_learnt_by_heart():
    model = Trainee(llama(), seed=2)
    progress: list[Progress] = []
    settings = Settings(steps=150, rate=1e-2, warmup=10, decay=0.0)
    result = Trainer(model, Same(), settings).run(on_progress=progress.append)
    assert result is not None
    assert result.history[0][1] > 2.0
    assert result.score.loss < 0.1
    assert result.score.accuracy > 0.9
    assert result.num_tokens == 150 * 33
    assert [p.step for p in progress] == [*range(20, 150, 20), 150]
    assert progress[-1].left_s == 0


@pytest.mark.parametrize("break_at", [1, 7, 10])
def test_interrupted_and_resumed_is_straight(tmp_path: Path, break_at):
    settings = Settings(steps=12, warmup=3, save_every=5, report_every=4)
    straight = Trainee(llama(), seed=3)
    expected = Trainer(straight, Fresh(), settings).run()
    path = tmp_path / "state.safetensors"
    assert (
        Trainer(Trainee(llama(), seed=3), Fresh(), settings).run(path, stop_after=break_at) is None
    )
    resumed = Trainee(llama(), seed=99)  # what it starts with does not matter
    seen: list[int] = []
    found = Trainer(resumed, Fresh(), settings).run(path, lambda p: seen.append(p.step))
    assert weights(resumed) == weights(straight)
    assert found is not None
    assert expected is not None
    assert found.score == expected.score
    assert min(seen) > break_at
    assert found.num_tokens == (12 - break_at) * 33


def test_an_interrupted_save_leaves_the_state_before_it(tmp_path: Path, monkeypatch):
    settings = Settings(steps=6, save_every=2)
    path = tmp_path / "state.safetensors"
    Trainer(Trainee(llama()), Fresh(), settings).run(path, stop_after=2)
    before = path.read_bytes()

    def torn(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headrace.formats.cache_dirs.os.replace", torn)
        with pytest.raises(KeyboardInterrupt):
            Trainer(Trainee(llama()), Fresh(), settings).run(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_checkpoint_of_something_else_or_damaged_is_refused(tmp_path: Path):
    settings = Settings(steps=4, save_every=2)
    path = tmp_path / "state.safetensors"
    Trainer(Trainee(llama()), Fresh(), settings).run(path, stop_after=2)
    others = {
        "model": Trainer(Trainee(llama(num_key_value_heads=1)), Fresh(), settings),
        "settings": Trainer(Trainee(llama()), Fresh(), Settings(steps=4, save_every=2, rate=1.0)),
        "data": Trainer(Trainee(llama()), Shifted(), settings),
    }
    for trainer in others.values():
        with pytest.raises(UsageError, match="another training"):
            trainer.run(path)
    whole = path.read_bytes()
    for damage in (b"", whole[:50], whole[: len(whole) // 2], b"\x00" * 200, b"\x80\x04pickle"):
        path.write_bytes(damage)
        with pytest.raises(UsageError, match="damaged"):
            Trainer(Trainee(llama()), Fresh(), settings).run(path)


class Shifted(Fresh):
    def batch(self, step: int) -> TokenBatch:
        return random_batch(step + 1)


def test_a_loss_that_is_no_number_ends_the_training():
    settings = Settings(steps=40, rate=1e30, warmup=0)
    with pytest.raises(HeadraceError, match="lower the learning rate"):
        Trainer(Trainee(llama()), Fresh(), settings).run()


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"rate": 0.0}, {"rate": math.inf}, {"rate": math.nan}, {"floor": 2.0}]
)
def test_settings_out_of_range_are_named(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        Settings(**({"steps": 1} | bad))
