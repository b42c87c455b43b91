"""Recorded logits: what is kept of a reference run, how it is stored, and how it is read back.

Per position the file keeps the 16 most probable ids with their logits, the logits of 240 fixed ids,
the log-normaliser and the argmax. The fixed ids are the first 240 of a listed 256 that are not
among the 16, so that the 256 kept ids of a row differ. Their logits are stored as steps of 1/512
below the row's highest (rounding error ≤ 0.001, far below what is measured); the 16 are exact.

    sequences  [P] prompt + continuation ids; the logits of row j are those that predict
               continuation token j, so a sequence is fed without its last id and gives N rows
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.verify.statistics import PromptReference, log_normaliser

NUM_TOP = 16
NUM_FIXED = 240
STEPS_PER_NAT = 512
DIRECTORY = Path(__file__).parent / "recorded"


@dataclass(frozen=True)
class Sequence:
    """One prompt with its recorded continuation."""

    ids: list[int]
    num_prompt: int

    @property
    def fed(self) -> list[int]:
        return self.ids[:-1]

    @property
    def num_rows(self) -> int:
        """The last so many rows of `fed` are recorded."""
        return len(self.ids) - self.num_prompt


@dataclass(frozen=True)
class Recording:
    """sequences and references: [P]. about: provenance (versions, file hash, tokenizer)."""

    sequences: list[Sequence]
    references: list[PromptReference]
    about: dict[str, Any]


def fixed_ids(vocab_size: int) -> np.ndarray:
    """The 256 listed ids, spread evenly at random over the vocabulary, ascending."""
    rng = np.random.default_rng(20_261_129)
    chosen = rng.choice(vocab_size, NUM_TOP + NUM_FIXED, replace=False)
    return np.sort(chosen).astype(np.int32)


def reference_of(logits: np.ndarray) -> PromptReference:
    """What is kept of float32 logits [N, V]."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :NUM_TOP].astype(np.int32)
    kept = _kept_ids(order, logits.shape[1])
    values = np.take_along_axis(logits, kept, axis=1)
    return PromptReference(
        kept, values, log_normaliser(logits), order[:, 0], values[:, 0] - values[:, 1]
    )


def _kept_ids(top: np.ndarray, vocab_size: int) -> np.ndarray:
    fixed = fixed_ids(vocab_size)
    rest = [fixed[~np.isin(fixed, row)][:NUM_FIXED] for row in top]
    return np.concatenate([top, np.stack(rest)], axis=1).astype(np.int32)


def save(path: Path, recording: Recording, vocab_size: int) -> None:
    """Writes one file; raises ValueError when a logit lies too deep for the steps."""
    logits = np.concatenate([r.kept_logits for r in recording.references])
    depth = np.rint((logits[:, :1].astype(np.float64) - logits[:, NUM_TOP:]) * STEPS_PER_NAT)
    if depth.max() > 65535 or depth.min() < 0:
        raise ValueError(f"a fixed id lies {depth.max() / STEPS_PER_NAT} nats deep")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        about=json.dumps(recording.about | {"vocab_size": vocab_size}, sort_keys=True),
        ids=np.concatenate([s.ids for s in recording.sequences]).astype(np.int32),
        lengths=np.array([len(s.ids) for s in recording.sequences], dtype=np.int32),
        num_prompt=np.array([s.num_prompt for s in recording.sequences], dtype=np.int32),
        top_ids=np.concatenate([r.kept_ids[:, :NUM_TOP] for r in recording.references]),
        top_logits=logits[:, :NUM_TOP],
        fixed_depth=depth.astype(np.uint16),
        log_normaliser=np.concatenate([r.log_normaliser for r in recording.references]),
    )


def load(path: Path) -> Recording:
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    about = json.loads(str(arrays["about"]))
    ends = np.cumsum(arrays["lengths"])
    sequences = [
        Sequence(ids.tolist(), int(prompt))
        for ids, prompt in zip(
            np.split(arrays["ids"], ends[:-1]), arrays["num_prompt"], strict=True
        )
    ]
    top = arrays["top_logits"]
    fixed = top[:, :1] - arrays["fixed_depth"] / np.float32(STEPS_PER_NAT)
    logits = np.concatenate([top, fixed], axis=1).astype(np.float32)
    references = []
    first = 0
    for sequence in sequences:
        rows = slice(first, first + sequence.num_rows)
        first = rows.stop
        ids = arrays["top_ids"][rows]
        references.append(
            PromptReference(
                _kept_ids(ids, about["vocab_size"]),
                logits[rows],
                arrays["log_normaliser"][rows],
                ids[:, 0],
                top[rows, 0] - top[rows, 1],
            )
        )
    return Recording(sequences, references, about)
