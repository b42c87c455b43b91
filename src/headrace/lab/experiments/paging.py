"""paging: how much of the KV memory that is given out holds something, and what is gained by
sharing it?

One engine serves the same heavy-tailed trace with every allocator. Where blocks lie does not depend
on what the weights are, so the trace runs on a tiny model with random weights; that all allocators
give the same text is checked on the run's own model.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.paging.checks import same_everywhere, same_shared
from headrace.lab.paging.sharing import (
    BEGINNING,
    NUM_BEGINNINGS,
    SLOTS,
    chats,
    measure_sharing,
    shared_positions,
)
from headrace.lab.paging.strategies import CONTEXT, STRATEGIES, useful_share
from headrace.lab.paging.trace import report_trace, run_strategy, trace
from headrace.lab.parts.random_model import random_model
from headrace.lab.values import Check, Findings, Kind, Prediction


class Paging(Experiment):
    name = "paging"
    title = "Paged KV memory: what is given out and what is used"
    question = (
        "How much of the KV memory that requests hold has something in it, and what does sharing "
        "add?"
    )
    claim = (
        "Reserving each request's maximum leaves 20-40 % of the memory useful; blocks on demand "
        "leave all of it but a part of each last block (PagedAttention, SOSP 2023), and requests "
        "that begin alike can hold their beginning once."
    )
    quick_s, full_s = 10.0, 90.0
    faults = ("freed-block", "stale-block-table", "long-match")
    try_this = (
        "headrace lab run paging --seed 2: another trace of the same distribution",
        "headrace lab run paging --inject freed-block: a block is given back while it is read",
        "headrace generate MODEL -p … --kv-allocator growing: any allocator by hand, the same text",
        "headrace serve MODEL --block-size 128: fewer, larger blocks; each last one wastes more",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        jobs = trace(lab)
        found = [
            Prediction(
                strategy.key,
                f"useful share of the memory held, {strategy.name}",
                useful_share(jobs, strategy),
                "share",
                "summed over the lengths of the trace, as if nobody were in the way"
                + ("; who finds no room for twice as much takes less" * strategy.doubles),
                Kind.AT_LEAST if strategy.doubles else Kind.VALUE,
                tolerance=1.01,
            )
            for strategy in STRATEGIES
        ]
        alone, together = shared_positions(chats(lab))
        found.append(
            Prediction(
                "sharing",
                f"memory held without sharing ÷ with, {NUM_BEGINNINGS} common beginnings of "
                f"{BEGINNING} tokens, {SLOTS} sequences at a time",
                alone / together,
                "×",
                "summed over the steps of the trace: beginnings in use counted once",
                tolerance=1.01,
            )
        )
        return found

    def check(self, lab: Lab) -> list[Check]:
        subject = lab.subject()
        checks = []
        with lab.stage("the same logits with every allocator", 0.6):
            for name, check in (
                ("every allocator gives the same logits, invariants hold after every step",
                 same_everywhere),
                ("shared beginnings give the same logits, invariants hold after every step",
                 same_shared),
            ):  # fmt: skip
                try:
                    passed, told = check(subject)
                except (RuntimeError, AssertionError) as error:  # of what is under test
                    passed, told = False, f"{type(error).__name__}: {error}"
                checks.append(Check(name, passed, told))
        return checks

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        model, jobs = random_model(max_context=CONTEXT), trace(lab)
        with lab.stage("the trace with every allocator", 0.8):
            runs = {}
            for number, strategy in enumerate(STRATEGIES):
                runs[strategy] = run_strategy(lab, model, jobs, strategy)
                lab.tell(f"trace: {strategy.name}", (number + 1) / len(STRATEGIES))
        report_trace(lab, jobs, runs, found)
        with lab.stage("common beginnings", 0.2):
            measure_sharing(lab, model, found)
        return found
