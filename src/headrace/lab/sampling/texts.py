"""Texts at several temperatures: how much they repeat, how they surprise the model, how they break.

Knows texts and their probabilities; what a single distribution looks like is distributions.py's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from headrace.engine.params import SamplingParams
from headrace.lab.findings_page import interval
from headrace.lab.lab import Lab
from headrace.lab.plots import style
from headrace.lab.sampling.definition import distinct, repeated
from headrace.lab.sampling.inputs import num_texts, output_tokens, passages_of, prompts_of
from headrace.lab.statistics import Interval, mean_interval, resolved
from headrace.lab.values import Findings, Prediction, Table
from headrace.verify.faults import NO_FAULT

#: Of the texts that are to break: greedy, three ordinary ones, too hot.
_RUNS = (0.0, 0.5, 1.0, 1.5, 2.0)
_GRID_T, _GRID_P = (0.3, 0.7, 1.0, 1.5), (1.0, 0.9, 0.5)


def perplexity_of(nats: Interval) -> Interval:
    """Perplexity of a mean of nats per token."""
    low, high = math.exp(nats.low), math.exp(nats.high)
    return Interval(math.exp(nats.value), low, high, nats.n, f"exp of the {nats.what}")


@dataclass(frozen=True, slots=True)
class Texts:
    """One temperature. tokens, nll: per text; nats per token, to the model at T = 1."""

    temperature: float
    tokens: list[list[int]]
    nll: list[float]

    @property
    def repeated(self) -> Interval:
        mean = mean_interval([repeated(own) for own in self.tokens])
        return replace(mean, low=max(0.0, mean.low), high=min(1.0, mean.high))

    @property
    def perplexity(self) -> Interval:
        return perplexity_of(mean_interval(self.nll))


def measure_texts(lab: Lab, findings: Findings) -> list[Texts]:
    count, prompts = num_texts(lab), prompts_of(lab)
    params = [
        SamplingParams(temperature=t, seed=lab.seed + i, ignore_eos=True, logprobs=0,
                       max_tokens=output_tokens(lab))
        for t in _RUNS for i in range(count)
    ]  # fmt: skip
    tokens, nll = _generate(lab, prompts * len(_RUNS), params)
    texts = [
        Texts(t, tokens[i * count : (i + 1) * count], nll[i * count : (i + 1) * count])
        for i, t in enumerate(_RUNS)
    ]
    by_t = {own.temperature: own for own in texts}
    findings.measured |= {
        "repeated 0": by_t[0.0].repeated,
        "repeated 1": by_t[1.0].repeated,
        "perplexity 1": by_t[1.0].perplexity,
        "perplexity 2": by_t[2.0].perplexity,
    }
    real = mean_interval([repeated(passage) for passage in passages_of(lab)])
    findings.tables.append(
        Table(
            "texts",
            ["T", "repeated 4-grams", "low", "high", "distinct-1", "distinct-2", "perplexity",
             "low ", "high "],
            [
                [own.temperature, own.repeated.value, own.repeated.low, own.repeated.high,
                 *(fmean(distinct(t, n) for t in own.tokens) for n in (1, 2)),
                 own.perplexity.value, own.perplexity.low, own.perplexity.high]
                for own in texts
            ],
            f"{count} texts of {output_tokens(lab)} tokens each; perplexity to the model itself "
            f"at T = 1; low, high: {by_t[0.0].repeated.what}, over the texts (of texts that all "
            f"repeat nothing it has no width). The real text behind the same prompts repeats "
            f"{real:.3f} of its 4-grams.",
        )
    )  # fmt: skip
    _conclude_pair(findings, "greedy text repeats more than text at T = 1",
                   by_t[0.0].repeated, by_t[1.0].repeated)  # fmt: skip
    _conclude_pair(findings, "text at T = 2 surprises the model more than text at T = 1",
                   by_t[2.0].perplexity, by_t[1.0].perplexity)  # fmt: skip
    return texts


def _generate(
    lab: Lab, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
) -> tuple[list[list[int]], list[float]]:
    """Texts, and each one's mean negative log-probability under the unchanged model."""
    engine, _ = lab.subject(fault=NO_FAULT).engine(max_num_seqs=16)
    requests = [engine.add(list(p), own) for p, own in zip(prompts, params, strict=True)]
    done = 0
    while engine.has_work:
        engine.step()
        finished = sum(request.finished for request in requests)
        if finished != done:
            done = finished
            lab.tell(f"{done} of {len(requests)} texts", done / len(requests))
    found = [request.generations[0] for request in requests]
    nll = [-(g.cumulative_logprob or 0.0) / len(g.token_ids) for g in found]
    return [list(g.token_ids) for g in found], nll


def _conclude_pair(findings: Findings, what: str, more: Interval, less: Interval) -> None:
    findings.conclude(
        f"{what}: {interval(more.to_dict())} against {interval(less.to_dict())}.",
        resolved(more, less) and more.value > less.value,
    )


def draw_breaking(lab: Lab, texts: Sequence[Texts], predicted: Mapping[str, Prediction]) -> None:
    caption = (
        "How texts break: the share of 4-grams said before (left), and the perplexity of the text "
        "to the model itself (right), with 95 % intervals over texts. Hollow: predicted."
    )
    alt = "Left: share of repeated 4-grams over temperature; right: perplexity, log axis"
    with lab.figure("breaking", caption, alt, columns=2) as (_, axes):
        for axis, series in zip(axes, ("repeated", "perplexity"), strict=True):
            found = [getattr(own, series) for own in texts]
            middle = [i.value for i in found]
            low = [i.value - i.low for i in found]
            high = [i.high - i.value for i in found]
            axis.errorbar(_RUNS, middle, yerr=[low, high], label="measured", **style(0))
            axis.set_xlabel("temperature")
        axes[0].set_ylabel("share of 4-grams repeated")
        axes[1].set_ylabel("perplexity")
        axes[1].set_yscale("log")
        for t in (1, 2):
            axes[1].plot([t], [predicted[f"perplexity {t}"].value], linestyle="", marker="o",
                         markersize=10, color="#D55E00", markerfacecolor="none")  # fmt: skip


def grid_of(lab: Lab) -> Table:
    """One prompt at every pair of temperature and top-p, one seed."""
    pairs = [(t, p) for t in _GRID_T for p in _GRID_P]
    prompt = prompts_of(lab)[1]
    params = [
        SamplingParams(temperature=t, top_p=p, seed=lab.seed, ignore_eos=True, logprobs=0,
                       max_tokens=64)
        for t, p in pairs
    ]  # fmt: skip
    tokens, nll = _generate(lab, [prompt] * len(pairs), params)
    tokenizer = lab.open().tokenizer
    rows: list[list[str | float | int | None]] = [
        [t, p, repeated(own), distinct(own, 2), math.exp(loss), _excerpt(tokenizer.decode(own))]
        for (t, p), own, loss in zip(pairs, tokens, nll, strict=True)
    ]
    end = " ".join(tokenizer.decode(prompt).split())[-60:]
    columns = ["T", "top_p", "repeated 4-grams", "distinct-2", "perplexity", "the text begins"]
    return Table(
        "grid", columns, rows, f"One prompt, that ends “…{end}”; one seed; 64 tokens each."
    )


def _excerpt(text: str) -> str:
    """The beginning, on one line, without what a table or a page would read as markup."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(plain.split())[:70].replace("`", "'").replace("<", "‹").replace(">", "›")
