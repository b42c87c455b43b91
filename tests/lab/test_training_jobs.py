"""Trainings in processes of their own give what the same training gives in this one."""

from pathlib import Path

import pytest
import torch
from training_models import llama

from headrace.errors import HeadraceError
from headrace.lab.training.checkpoint import load_state
from headrace.lab.training.jobs import STATE, Job, run_jobs
from headrace.lab.training.loop import Trainer
from headrace.lab.training.model import Trainee
from headrace.lab.training.recall import RecallData
from headrace.lab.training.settings import Settings

pytestmark = pytest.mark.torch

SIZES = {"batch": 4, "facts": 5, "keys": 6, "values": 3, "seed": 7, "validation_batches": 2}
MODEL = llama(vocab_size=RecallData(**SIZES).vocab_size)


def job(directory: Path, **changes) -> Job:
    settings = Settings(**({"steps": 6, "report_every": 2} | changes))
    return Job("small", MODEL, {"kind": "recall"} | SIZES, settings, 5, directory)


def test_a_job_is_the_training_it_names(tmp_path: Path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = Trainee(MODEL, seed=5)
        trainer = Trainer(model, RecallData(**SIZES), job(tmp_path).settings, name="small")
        expected = trainer.run()
    finally:
        torch.set_num_threads(threads)
    seen: list[tuple[str, int, int]] = []

    def told(name: str, step: int, steps: int, tok_per_s: float) -> None:
        seen.append((name, step, steps))

    found = run_jobs([job(tmp_path)], workers=2, on_progress=told)["small"]
    assert expected is not None
    assert (found.loss, found.num_right) == (expected.score.loss, expected.score.num_right)
    assert found.history == expected.history
    assert not found.resumed
    assert seen == [("small", step, 6) for step in (2, 4, 6)]
    seen.clear()
    again = run_jobs([job(tmp_path)], workers=1, on_progress=told)["small"]
    assert (again.loss, again.num_tokens, again.resumed) == (found.loss, 0, True)
    assert seen == [("small", 6, 6)]
    parameters = load_state(tmp_path / STATE).parameters
    for name, p in model.parameters.items():
        assert torch.equal(p, parameters[name]), name


def test_a_job_that_fails_is_named(tmp_path: Path):
    with pytest.raises(HeadraceError, match="training small"):
        run_jobs([job(tmp_path, rate=1e30, warmup=0, steps=40)], workers=1)
