"""From what was trained and timed to intervals, tables and conclusions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.lab.heads.decoding import Speed
from headrace.lab.heads.variants import NAMES, Plan, num_parameters
from headrace.lab.statistics import (
    Interval,
    exact,
    mean_interval,
    median_interval,
    ratio_interval,
    resolved,
    share_interval,
)
from headrace.lab.training.jobs import Done
from headrace.lab.training.text import TextTokens
from headrace.lab.values import Cell, Findings, Table

#: Results by variant, one per seed.
Runs = Mapping[str, list[Done]]
#: From this training loss on (nats) a model is said to have learnt to recall.
_LEARNT = 1.0
OTHERS = NAMES[1:]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run gave. text, recall: in the order of the seeds. source: what the text is."""

    plan: Plan
    seeds: tuple[int, ...]
    text: Runs
    recall: Runs
    speeds: Mapping[str, Speed]
    tokens: TextTokens
    source: str

    def losses(self) -> dict[str, Interval]:
        """Validation loss, over the seeds."""
        return {n: mean_interval([done.loss for done in self.text[n]]) for n in NAMES}

    def recalls(self) -> dict[str, Interval]:
        """Share of right answers, over the seeds; ends at 0 and 1."""
        found = {}
        for name in NAMES:
            i = mean_interval([done.num_right / done.num_scored for done in self.recall[name]])
            found[name] = Interval(i.value, max(i.low, 0.0), min(i.high, 1.0), i.n, i.what)
        return found

    def decoding(self) -> dict[str, Interval]:
        """Tokens per second."""
        return {n: median_interval(self.speeds[n].tok_per_s) for n in NAMES}


def findings(outcome: Outcome) -> Findings:
    """Everything but the figure."""
    plan, found = outcome.plan, Findings()
    recalls = outcome.recalls()
    for name in NAMES:
        found.measured[f"cache {name}"] = exact(outcome.speeds[name].cache_bytes)
        found.measured[f"recall {name}"] = recalls[name]
    for name in OTHERS:
        pairs = zip(outcome.text[name], outcome.text["MHA"], strict=True)
        found.measured[f"loss {name}"] = mean_interval([d.loss - base.loss for d, base in pairs])
        found.measured[f"decode {name}"] = ratio_interval(
            outcome.speeds[name].tok_per_s, outcome.speeds["MHA"].tok_per_s
        )
    found.tables = [_summary(outcome), _trainings(outcome), _recalls(outcome)]
    _conclude(found, outcome)
    found.notes = [
        f"Seeds {', '.join(map(str, outcome.seeds))}. A seed fixes the first weights and the order "
        "of the data, which is the same for all variants. Intervals over seeds are Student's, with "
        f"{len(outcome.seeds) - 1} degrees of freedom, and wide. Six pairs of losses and recalls "
        "are compared without a correction for six; but two such intervals of three seeds that do "
        "not overlap are rare where there is no difference: one pair in 200 if both spread alike, "
        "one in 100 if one spreads three times as far. How far they lie apart is in the sentence.",
        f"Decoding: the models of seed {outcome.seeds[0]}, float32 weights, bf16 KV, {plan.batch} "
        f"sequences of {plan.depth} positions. They were trained on windows of "
        f"{plan.language.length} tokens; speed does not depend on what the text is.",
    ]
    return found


def _summary(outcome: Outcome) -> Table:
    plan, rows = outcome.plan, list[list[Cell]]()
    losses, recalls, decoding = outcome.losses(), outcome.recalls(), outcome.decoding()
    for name in NAMES:
        outline = plan.language.outline(name, plan.vocab_size)
        speed = outcome.speeds[name]
        rows.append([
            name, outline.config.num_kv_heads, outline.config.intermediate_size,
            num_parameters(outline), speed.cache_bytes,
            _shown(losses[name], 3), _shown(recalls[name], 4), _shown(decoding[name], 0),
            median_interval(speed.of_bound).value,
        ])  # fmt: skip
    columns = [
        "variant", "KV heads", "F", "parameters", "cache bytes per token",
        "validation loss (95 %)", "recall (95 %)", "decode tok/s (interval)", "share of the bound",
    ]  # fmt: skip
    note = (
        f"Loss in nats per token of a vocabulary of {plan.vocab_size}; decode: {plan.batch} "
        f"sequences of {plan.depth} positions."
    )
    return Table("variants", columns, rows, note)


def _trainings(outcome: Outcome) -> Table:
    tokens, rows = outcome.tokens, list[list[Cell]]()
    for name in NAMES:
        for seed, done in zip(outcome.seeds, outcome.text[name], strict=True):
            bits = done.loss / math.log(2) * tokens.num_validation / tokens.validation_bytes
            steps, last = done.history[-1]
            speed = done.num_tokens / done.seconds if done.num_tokens else None
            rows.append([name, seed, done.loss, bits, done.num_scored, last, steps, speed])
    columns = [
        "variant", "seed", "validation loss", "bits per byte", "tokens scored",
        "last training loss", "steps", "tok/s of training",
    ]  # fmt: skip
    note = (
        f"{outcome.source}: {tokens.num_train:,} tokens to train on, {tokens.num_validation:,} to "
        "validate with. tok/s: of one thread beside others; — where an earlier run had done it."
    )
    return Table("language", columns, rows, note)


def _recalls(outcome: Outcome) -> Table:
    rows = list[list[Cell]]()
    for name in NAMES:
        for seed, done in zip(outcome.seeds, outcome.recall[name], strict=True):
            share = share_interval(done.num_right, done.num_scored)
            learnt = next((step for step, loss in done.history if loss < _LEARNT), None)
            rows.append([name, seed, share.value, share.low, share.high, done.num_scored, learnt])
    task = outcome.plan.recall
    note = (
        f"low, high: Wilson's 95 % interval over the questions. learnt: training loss below "
        f"{_LEARNT:g} nats; guessing one of {task.values} values costs {math.log(task.values):.2f}."
    )
    columns = ["variant", "seed", "recalled", "low", "high", "questions", "learnt at step"]
    return Table("recall", columns, rows, note)


def _conclude(found: Findings, outcome: Outcome) -> None:
    """Says which is larger only where the intervals are disjoint; of speeds, which were measured in
    turns, where that of their ratio leaves out 1."""
    most = outcome.speeds["MHA"].cache_bytes
    for name in OTHERS:
        held = outcome.speeds[name].cache_bytes
        found.conclude(
            f"{name} keeps {held:,.0f} bytes per token, {most / held:g} times fewer than MHA's "
            f"{most:,.0f}."
        )
    for one, two in (("GQA", "MHA"), ("MQA", "MHA"), ("MQA", "GQA")):
        ratio = ratio_interval(outcome.speeds[one].tok_per_s, outcome.speeds[two].tok_per_s)
        found.conclude(
            f"{one} decodes {ratio:.2f} times as fast as {two}, measured in turns.",
            resolved=ratio.low > 1 or ratio.high < 1,
        )
    for what, values, more, digits in (
        ("Validation loss", outcome.losses(), "ends with a higher validation loss than", 3),
        ("Recall", outcome.recalls(), "recalls more than", 4),
    ):
        for one, two in (("GQA", "MHA"), ("MQA", "MHA"), ("MQA", "GQA")):
            large, small = (one, two) if values[one].value >= values[two].value else (two, one)
            shown = f"{_shown(values[large], digits)} against {_shown(values[small], digits)}"
            if resolved(values[one], values[two]):
                found.conclude(f"{large} {more} {small}: {shown}.")
            else:
                found.conclude(
                    f"{what} of {large} and {small}, {shown}: the intervals overlap.",
                    resolved=False,
                )


def _shown(value: Interval, digits: int) -> str:
    return f"{value:,.{digits}f}"
