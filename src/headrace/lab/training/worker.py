"""The process of one job: `python -m headrace.lab.training.worker JOB`, JOB as jobs.py writes it.

Prints JSON lines: progress, and at the end the result or {"error": sentence}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from headrace.errors import HeadraceError
from headrace.lab.training.batch import Data
from headrace.lab.training.jobs import STATE
from headrace.lab.training.loop import Progress, Trainer
from headrace.lab.training.model import Trainee
from headrace.lab.training.recall import RecallData
from headrace.lab.training.settings import Settings
from headrace.lab.training.text import TextData, load_tokens


def make_data(words: dict[str, Any]) -> Data:
    """The data set that a job describes."""
    sizes = dict(words)
    kind = sizes.pop("kind")
    if kind == "text":
        return TextData(load_tokens(Path(sizes.pop("path"))), **sizes)
    assert kind == "recall", kind
    return RecallData(**sizes)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Trains to the end → the result's JSON."""
    settings = Settings(**job["settings"] | {"betas": tuple(job["settings"]["betas"])})
    model = Trainee(job["model"], seed=job["seed"])
    trainer = Trainer(model, make_data(job["data"]), settings, name=job["name"])
    state = Path(job["directory"]) / STATE
    resumed = state.exists()
    result = trainer.run(state, _tell)
    assert result is not None
    return {
        "loss": result.score.loss,
        "num_right": result.score.num_right,
        "num_scored": result.score.num_scored,
        "history": result.history,
        "seconds": result.seconds,
        "num_tokens": result.num_tokens,
        "resumed": resumed,
    }


def _tell(progress: Progress) -> None:
    _print({"step": progress.step, "steps": progress.steps, "tok_per_s": progress.tok_per_s})


def _print(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> int:
    torch.set_num_threads(1)
    try:
        _print(work(json.loads(sys.argv[1])))
    except HeadraceError as error:
        _print({"error": str(error)})
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # whoever started this has ended
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
