"""What has to be true of the sampler before its output is looked at: docs/sampling.md, checked on
real logits against definition.py, and through engines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.engine import sampler
from headrace.engine.params import SamplingParams
from headrace.lab.sampling.definition import Candidates, candidates, stages
from headrace.lab.sampling.inputs import Rows
from headrace.lab.statistics import chi_square, largest
from headrace.lab.values import Check
from headrace.verify.probe import run_requests
from headrace.verify.subject import Subject

#: Of probabilities and entropies.
TOLERANCE = 1e-5
#: A right sampler fails one such test in a million.
LEAST_P_VALUE = 1e-6
_PARAMS = (
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1.7),
    SamplingParams(temperature=0.8, top_k=40),
    SamplingParams(temperature=1.2, top_p=0.9),
    SamplingParams(min_p=0.05),
    SamplingParams(temperature=0.9, typical_p=0.8),
    SamplingParams(temperature=1.5, top_k=100, typical_p=0.95, top_p=0.9, min_p=0.01),
    SamplingParams(
        temperature=1.5, top_p=0.8, min_p=0.02,
        stages=("bias", "penalties", "min_p", "top_p", "top_k", "typical", "temperature"),
    ),
)  # fmt: skip
#: A batch of that many rows is drawn from at that many positions.
_STATES, _POSITIONS = 32, 600


def stages_are_the_definition(rows: Rows, num_ids: int) -> Check:
    """Candidates, probabilities and entropy after every stage, against float64 numpy."""
    errors, compared, wrong_sets = list[float](), 0, 0
    for row in rows:
        start = candidates(row, num_ids)
        for params in _PARAMS:
            state = sampler.make_state(params.replace(trace=100), [], seed=1)
            [drawn] = sampler.sample(row[None], [state], [0], num_ids)
            assert drawn.trace is not None
            expected = stages(start, params)
            for stage in drawn.trace.stages:
                if stage.name not in expected:
                    continue
                want = expected[stage.name]
                compared += 1
                wrong_sets += stage.after.num_candidates != len(want.ids)
                errors.append(abs(stage.after.entropy - want.entropy))
                errors.append(_worst_probability(stage.after.top, want))
    worst = largest(errors)
    passed = compared > 0 and wrong_sets == 0 and worst <= TOLERANCE
    detail = (
        f"{compared} stages on {len(rows)} positions: {wrong_sets} other candidate sets, largest "
        f"error of a probability or entropy {worst:.1e}"
    )
    return Check("the native stages are the definition in float64", passed, detail)


def _worst_probability(top: Sequence[tuple[int, float]], want: Candidates) -> float:
    pairs = zip(want.ids.tolist(), want.probabilities.tolist(), strict=True)
    expected: dict[int, float] = dict(pairs)
    return largest(abs(p - expected.get(token, 2.0)) for token, p in top)


def draws_follow_the_law(rows: Rows, num_ids: int, seed: int) -> list[Check]:
    """Chi-square of draws with fixed seeds against the probabilities of the definition."""
    checks = []
    for number, row in enumerate(rows):
        params = SamplingParams(temperature=(0.7, 1.0, 1.6)[number % 3], top_k=60)
        law = stages(candidates(row, num_ids), params)["min_p"]
        place = {token: i for i, token in enumerate(law.ids.tolist())}
        states = [sampler.make_state(params, [], seed=seed * 1000 + i) for i in range(_STATES)]
        batch = np.repeat(row[None], _STATES, axis=0)
        counts = np.zeros(len(law.ids) + 1, np.int64)
        for position in range(_POSITIONS):
            for drawn in sampler.sample(batch, states, [position] * _STATES, num_ids):
                counts[place.get(drawn.token, len(law.ids))] += 1
        p_value, cells = chi_square(counts[:-1], law.probabilities)
        passed = counts[-1] == 0 and p_value > LEAST_P_VALUE
        detail = (
            f"{counts.sum():,} draws in {cells} cells: p-value {p_value:.3f}, {counts[-1]} draws "
            "of ids that cannot be drawn"
        )
        checks.append(Check(f"draws follow the law at T = {params.temperature}", passed, detail))
    return checks


def smallest_temperature_is_greedy(rows: Rows, num_ids: int) -> Check:
    """T → 0: the argmax, as temperature 0 by definition."""
    tokens = []
    for temperature in (0.0, 1e-5):
        params = SamplingParams(temperature=temperature)
        states = [sampler.make_state(params, [], seed=i) for i in range(len(rows))]
        drawn = sampler.sample(np.ascontiguousarray(rows), states, [0] * len(rows), num_ids)
        tokens.append([d.token for d in drawn])
    best = rows[:, :num_ids].argmax(axis=1).tolist()
    same = tokens[0] == tokens[1] == best
    return Check("T → 0 is the argmax", same, f"{len(rows)} positions")


def neighbours_change_nothing(subject: Subject) -> Check:
    """Seeded texts alone, and as the first and the third of four that start together."""
    prompts = list(subject.workload.shorts[:4])
    params = [
        SamplingParams(temperature=1.0, seed=40 + i, ignore_eos=True, max_tokens=24)
        for i in range(len(prompts))
    ]
    together = run_requests(*subject.engine(), prompts, params)
    equal = []
    for i in range(0, len(prompts), 2):
        alone = run_requests(*subject.engine(), prompts[i : i + 1], params[i : i + 1])
        pairs = zip(alone.tokens[0][0], together.tokens[i][0], strict=True)
        equal += [a == b for a, b in pairs]
    detail = f"{sum(equal)} of {len(equal)} tokens"
    return Check("a seeded text does not depend on its neighbours", all(equal), detail)
