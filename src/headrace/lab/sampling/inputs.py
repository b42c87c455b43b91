"""What the experiment looks at: logits at places of a real text, and prompts from all over it with
what really stands behind them. Knows the size of a run, nothing of temperatures or stages.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.engine.params import SamplingParams
from headrace.lab.lab import Lab
from headrace.verify.faults import NO_FAULT
from headrace.verify.probe import run_requests

Rows = npt.NDArray[np.float32]

#: Positions between two places that are looked at.
EVERY = 16
_PROMPT = 48


def rows_along(lab: Lab) -> Rows:
    """Logits [n, ids] at every 16th position of English text."""
    length = 512
    text = lab.english(length)
    subject = lab.subject(fault=NO_FAULT)
    positions = range(EVERY - 1, length - 1, EVERY)
    run = run_requests(*subject.engine(positions), [text], SamplingParams(max_tokens=1))
    return np.stack([run.rows[0, 0, p] for p in positions])[:, : subject.num_ids].copy()


def num_texts(lab: Lab) -> int:
    """Texts at each temperature."""
    return 12 if lab.quick else 32


def output_tokens(lab: Lab) -> int:
    return 160 if lab.quick else 384


def prompts_of(lab: Lab) -> list[list[int]]:
    """From all over the text."""
    return [piece[:_PROMPT] for piece in _pieces(lab)]


def passages_of(lab: Lab) -> list[list[int]]:
    """What really stands behind each prompt, as long as what is generated there."""
    return [piece[_PROMPT:] for piece in _pieces(lab)]


def _pieces(lab: Lab) -> list[list[int]]:
    return lab.passages(num_texts(lab), _PROMPT + output_tokens(lab))


def rows_behind_prompts(lab: Lab) -> list[list[npt.NDArray[np.float64]]]:
    """By passage: logits [ids] at every 16th position behind its prompt."""
    subject = lab.subject(fault=NO_FAULT)
    length = _PROMPT + output_tokens(lab)
    positions = range(_PROMPT - 1, length - 1, EVERY)
    engine, probe = subject.engine(positions)
    found = []
    for text in _pieces(lab):
        probe.rows_seen.clear()
        run = run_requests(engine, probe, [text], SamplingParams(max_tokens=1))
        request = run.requests[0].request_id
        rows = (run.rows[request, 0, p][: subject.num_ids] for p in positions)
        found.append([row.astype(np.float64) for row in rows])
    return found
