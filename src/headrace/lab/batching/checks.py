"""The same logits and texts alone, in static and in continuous batches. Times nothing."""

from __future__ import annotations

from headrace.bench.measure import GREEDY
from headrace.lab.batching.workload import MODES, Plan, engine_of, serve_plan
from headrace.lab.lab import Lab
from headrace.lab.values import Check
from headrace.verify.probe import run_requests
from headrace.verify.result import difference


def same_logits(lab: Lab) -> Check:
    """Logits of every drawn token: alone = in static batches of 3 = in continuous ones."""
    subject = lab.subject()
    prompts = [list(ids) for ids in subject.workload.shorts[:4]] + [subject.workload.text[40:77]]
    lengths = [3, 9, 4, 12, 6]
    params = [GREEDY.replace(max_tokens=n) for n in lengths]
    alone = [
        run_requests(*subject.engine(), [ids], [own])
        for ids, own in zip(prompts, params, strict=True)
    ]
    worst, num_rows, num_texts = 0.0, 0, 0
    for mode in MODES:
        together = run_requests(*subject.engine(batching=mode, max_num_seqs=3), prompts, params)
        for number, single in enumerate(alone):
            worst = max(worst, difference(single.rows, together.of(number)))
            num_rows += len(single.rows)
            num_texts += single.tokens[0] == together.tokens[number]
    return Check(
        "logits and texts alone = in batches of 3, static and continuous",
        worst == 0.0 and num_texts == len(MODES) * len(alone),
        f"max |Δ| {worst:.3g} over {num_rows} rows; {num_texts} of "
        f"{len(MODES) * len(alone)} texts equal",
    )


def same_texts(lab: Lab, work: Plan) -> Check:
    """The whole trace: equal texts, and exactly the steps that were counted beforehand."""
    runs = {mode: serve_plan(lab, engine_of(lab, mode), work) for mode in MODES}
    equal = sum(a == b for a, b in zip(*(runs[mode].token_ids for mode in MODES), strict=True))
    steps = {mode: [s.num_seqs for s in run.steps] for mode, run in runs.items()}
    counted = {mode: [len(s) for s in work.steps[mode]] for mode in MODES}
    return Check(
        "every text of the trace is the same both ways, in the steps that were counted",
        equal == len(work.jobs) and steps == counted,
        f"{equal} of {len(work.jobs)} texts equal; "
        + ", ".join(f"{mode} {len(steps[mode])} steps" for mode in MODES),
    )
