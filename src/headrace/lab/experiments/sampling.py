"""sampling: what temperature and the thinning stages do to real distributions, and to texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt

from headrace.engine import sampler
from headrace.engine.params import SamplingParams
from headrace.engine.trace import SamplerTrace
from headrace.lab.experiment import Experiment
from headrace.lab.findings_page import interval, number
from headrace.lab.lab import Lab
from headrace.lab.parts.sampling_checks import (
    draws_follow_the_law,
    neighbours_change_nothing,
    smallest_temperature_is_greedy,
    stages_are_the_definition,
)
from headrace.lab.parts.sampling_model import (
    cross_entropy,
    distinct,
    entropy_at,
    entropy_slope,
    repeated,
)
from headrace.lab.plots import style
from headrace.lab.statistics import Interval, mean_interval, resolved
from headrace.lab.values import Check, Findings, Kind, Prediction, Table
from headrace.verify.faults import NO_FAULT
from headrace.verify.probe import run_requests

Rows = npt.NDArray[np.float32]

_TEMPERATURES = tuple(round(0.2 * i, 1) for i in range(1, 11))
_TOP_K = (1, 5, 20, 50, 200)
_TOP_P = (0.5, 0.8, 0.9, 0.95, 0.99)
_MIN_P = (0.3, 0.1, 0.05, 0.02, 0.01)
#: Of the texts that are to break: greedy, three ordinary ones, too hot.
_RUNS = (0.0, 0.5, 1.0, 1.5, 2.0)
_GRID_T, _GRID_P = (0.3, 0.7, 1.0, 1.5), (1.0, 0.9, 0.5)
_PROMPT, _EVERY = 48, 16


class Sampling(Experiment):
    """See docs/lab/sampling.md."""

    name = "sampling"
    title = "Temperature, candidate sets, and how a text breaks"
    question = (
        "What do temperature, top-k, top-p and min-p do to the distribution of the next token, and "
        "at what settings does the text itself break?"
    )
    claim = (
        "Entropy grows with temperature; greedy text repeats itself and hot text drifts; top-p and "
        "min-p adapt the number of candidates to the position, top-k does not (Holtzman et al., "
        "“The Curious Case of Neural Text Degeneration”, 2020)."
    )
    quick_s = 60.0
    full_s = 240.0
    faults = ("noise-key", "row-swap")
    try_this = (
        "`headrace lab run sampling --quick --model qwen2.5-coder-0.5b`: a larger vocabulary, and "
        "a model tuned on code.",
        "`--seed 2`: other draws. Which conclusions survive?",
        "`headrace generate MODEL -p … --temperature 2 --min-p 0.1`: heat without the tail.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        passages, rows = _passages(lab), _text_rows(lab)
        at_one = _exp(mean_interval([fmean(entropy_at(z, 1.0) for z in own) for own in rows]))
        hot = _exp(mean_interval([fmean(cross_entropy(z, 2.0) for z in own) for own in rows]))
        logits = f"logits at {sum(map(len, rows))} places of the real text behind the same prompts"
        return [
            Prediction(
                "slope", "slope of the entropy at T = 1, over Var(z) ÷ T³", 1.0, "",
                "dH/dT = Var(z) ÷ T³ exactly", tolerance=1.01,
            ),
            Prediction(
                "deficit", "how far entropy at T = 2 stays below ln V, over σ² ÷ 2T²", 1.0, "×",
                "as if logits were normal; σ: of all logits of a position, position by position",
            ),
            Prediction(
                "perplexity 1", "perplexity, to the model itself, of its text at T = 1",
                at_one.value, "",
                f"exp of the mean entropy of {logits}, uncertain by itself: {number(at_one.low)} … "
                f"{number(at_one.high)}", tolerance=1.5,
            ),
            Prediction(
                "perplexity 2", "the same at T = 2", hot.value, "",
                f"exp of the mean cross-entropy between T = 2 and T = 1, {logits}, uncertain by "
                f"itself: {number(hot.low)} … {number(hot.high)}", tolerance=1.5,
            ),
            Prediction(
                "repeated 0", "share of 4-grams of greedy text that it has said before", 0.5, "",
                "what is taught: greedy text ends in a loop; half of it is our mark",
                Kind.AT_LEAST, tolerance=1.0,
            ),
            Prediction(
                "repeated 1", "the same at T = 1", fmean(map(repeated, passages)), "",
                "as much as so many tokens of the real text behind the same prompts, and at most "
                "0.05 more", Kind.AT_MOST, tolerance=1.0, slack=0.05,
            ),
        ]  # fmt: skip

    def check(self, lab: Lab) -> list[Check]:
        rows = _rows(lab)[::4]
        num_ids = lab.subject(fault=NO_FAULT).num_ids
        return [
            stages_are_the_definition(rows, num_ids),
            *draws_follow_the_law(rows[:3], num_ids, lab.seed),
            smallest_temperature_is_greedy(rows, num_ids),
            neighbours_change_nothing(lab.subject()),
        ]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        findings = Findings()
        rows = _rows(lab)
        with lab.stage("distributions", 0.3):
            _measure_entropy(lab, rows, findings)
            _measure_sets(lab, rows, findings)
        with lab.stage("texts", 0.6):
            texts = _measure_texts(lab, findings)
            _draw_breaking(lab, texts, predicted)
        with lab.stage("grid", 0.1):
            findings.tables.append(_grid(lab))
        return findings


def _rows(lab: Lab) -> Rows:
    """Logits [n, ids] at every 16th position of English text."""
    length = 512
    text = lab.english(length)
    subject = lab.subject(fault=NO_FAULT)
    positions = range(_EVERY - 1, length - 1, _EVERY)
    run = run_requests(*subject.engine(positions), [text], SamplingParams(max_tokens=1))
    return np.stack([run.rows[0, 0, p] for p in positions])[:, : subject.num_ids].copy()


def _count(lab: Lab) -> int:
    """Texts at each temperature."""
    return 12 if lab.quick else 32


def _prompts(lab: Lab) -> list[list[int]]:
    """From all over the text."""
    return [piece[:_PROMPT] for piece in _pieces(lab)]


def _passages(lab: Lab) -> list[list[int]]:
    """What really stands behind each prompt, as long as what is generated there."""
    return [piece[_PROMPT:] for piece in _pieces(lab)]


def _pieces(lab: Lab) -> list[list[int]]:
    return lab.passages(_count(lab), _PROMPT + _output_tokens(lab))


def _text_rows(lab: Lab) -> list[list[npt.NDArray[np.float64]]]:
    """By passage: logits [ids] at every 16th position behind its prompt."""
    subject = lab.subject(fault=NO_FAULT)
    length = _PROMPT + _output_tokens(lab)
    positions = range(_PROMPT - 1, length - 1, _EVERY)
    engine, probe = subject.engine(positions)
    found = []
    for text in _pieces(lab):
        probe.rows_seen.clear()
        run = run_requests(engine, probe, [text], SamplingParams(max_tokens=1))
        request = run.requests[0].request_id
        rows = (run.rows[request, 0, p][: subject.num_ids] for p in positions)
        found.append([row.astype(np.float64) for row in rows])
    return found


def _exp(nats: Interval) -> Interval:
    """Perplexity of a mean of nats per token."""
    low, high = math.exp(nats.low), math.exp(nats.high)
    return Interval(math.exp(nats.value), low, high, nats.n, f"exp of the {nats.what}")


def _traces(rows: Rows, params: SamplingParams) -> Iterator[SamplerTrace]:
    """The native sampler's trace of every row."""
    params = params.replace(trace=1)
    states = [sampler.make_state(params, [], seed=1) for _ in rows]
    for drawn in sampler.sample(rows, states, [0] * len(rows), rows.shape[1]):
        assert drawn.trace is not None
        yield drawn.trace


# ---- distributions -------------------------------------------------------------------------------


def _measure_entropy(lab: Lab, rows: Rows, findings: Findings) -> None:
    def entropies(temperature: float) -> list[float]:
        traces = _traces(rows, SamplingParams(temperature=temperature))
        return [trace.stages[-1].after.entropy for trace in traces]

    curves = np.array([entropies(t) for t in _TEMPERATURES])
    step = 1e-3
    ratios = [
        (high - low) / (2 * step) / entropy_slope(z.astype(np.float64), 1.0)
        for high, low, z in zip(entropies(1 + step), entropies(1 - step), rows, strict=True)
    ]
    findings.measured["slope"] = mean_interval(ratios)
    means = [mean_interval(list(curve)) for curve in curves]
    hottest = _TEMPERATURES[-1]
    findings.measured["deficit"] = mean_interval(
        [
            (math.log(len(z)) - h) / (math.log(len(z)) - _normal_law(z, hottest))
            for z, h in zip(rows, curves[-1], strict=True)
        ]
    )
    findings.tables.append(
        Table(
            "entropy over temperature",
            ["T", "mean, nats", "low", "high", "least", "most", "as if normal"],
            [
                [t, m.value, m.low, m.high, float(c.min()), float(c.max()),
                 fmean(max(0.0, _normal_law(z, t)) for z in rows)]
                for t, m, c in zip(_TEMPERATURES, means, curves, strict=True)
            ],
            f"{len(rows)} positions, every {_EVERY}th of one text; ln V = "
            f"{math.log(rows.shape[1]):.2f} nats. The interval is that of the mean over positions, "
            "as if these were independent.",
        )
    )  # fmt: skip
    falls = int((np.diff(curves, axis=0) < 0).sum())
    findings.conclude(
        f"Entropy fell {falls} times in {np.diff(curves, axis=0).size} steps of 0.2 in "
        "temperature; by its formula it never does.",
        falls == 0,
    )
    caption = (
        "Entropy of the next token over temperature: thin lines of single positions, the mean of "
        "all, and what normal logits of the same variance would have."
    )
    alt = "Entropy over temperature: single positions, their mean, the normal law, and ln V"
    with lab.figure("entropy", caption, alt) as (_, axis):
        for curve in curves.T[:: max(1, len(rows) // 12)]:
            axis.plot(
                _TEMPERATURES, curve, color="#999999", linewidth=0.6, marker="", linestyle="-"
            )
        axis.plot(_TEMPERATURES, [m.value for m in means], label="mean", **style(0))
        law = [fmean(max(0.0, _normal_law(z, t)) for z in rows) for t in _TEMPERATURES]
        axis.plot(_TEMPERATURES, law, label="normal logits", **style(1))
        axis.axhline(
            math.log(rows.shape[1]), color="#000000", linestyle=":", marker="", label="ln V"
        )
        axis.set_xlabel("temperature")
        axis.set_ylabel("entropy, nats")
        axis.legend(loc="lower right")


def _normal_law(z: npt.NDArray[np.float32], temperature: float) -> float:
    return math.log(len(z)) - float(z.astype(np.float64).var()) / (2 * temperature**2)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stage's parameter, and what it keeps at each position: candidates, probability mass."""

    value: float
    counts: Sequence[int]
    masses: Sequence[float]


def _measure_sets(lab: Lab, rows: Rows, findings: Findings) -> None:
    table_rows: list[list[str | float | int | None]] = []
    sizes: dict[str, list[_Kept]] = {}
    for name, values in (("top_k", _TOP_K), ("top_p", _TOP_P), ("min_p", _MIN_P)):
        for value in values:
            counts, masses = [], []
            for trace in _traces(rows, SamplingParams.from_dict({name: value})):
                stage = next(s for s in trace.stages if s.name == name)
                counts.append(stage.after.num_candidates)
                # The first candidate's share grows by 1 ÷ what is kept.
                masses.append(stage.before.top[0][1] / stage.after.top[0][1])
            sizes.setdefault(name, []).append(_Kept(value, counts, masses))
            table_rows.append(
                [f"{name} {value}", int(np.median(counts)), min(counts), max(counts),
                 fmean(masses), min(masses), max(masses)]
            )  # fmt: skip
    findings.tables.append(
        Table(
            "candidates",
            ["stage", "candidates, median", "fewest", "most", "mass kept, mean", "least", "most "],
            table_rows,
            f"T = 1, {len(rows)} positions.",
        )
    )
    of_p, of_k = sizes["top_p"][2].counts, sizes["top_k"][3].masses
    findings.conclude(
        f"top_p 0.9 keeps between {min(of_p)} and {max(of_p)} candidates on one text: the set "
        "follows the position. top_k 50 keeps 50, and between "
        f"{min(of_k):.2f} and {max(of_k):.2f} of the mass."
    )
    caption = (
        "Candidates (left) and probability mass (right) that each stage keeps: median and range."
    )
    alt = "Left: numbers of candidates per stage, log axis; right: kept probability mass"
    with lab.figure("sets", caption, alt, columns=2) as (_, axes):
        for series, (name, points) in enumerate(sizes.items()):
            x = np.arange(len(points)) + 6 * series
            for axis, found in (
                (axes[0], [p.counts for p in points]),
                (axes[1], [p.masses for p in points]),
            ):
                middle = [float(np.median(own)) for own in found]
                low = [m - min(own) for m, own in zip(middle, found, strict=True)]
                high = [max(own) - m for m, own in zip(middle, found, strict=True)]
                axis.errorbar(x, middle, yerr=[low, high], label=name, **style(series))
        labels = [f"{p.value:g}" for points in sizes.values() for p in points]
        ticks = [i + 6 * s for s, points in enumerate(sizes.values()) for i in range(len(points))]
        for axis in axes:
            axis.set_xticks(ticks, labels, fontsize=8, rotation=60)
            axis.legend()
        axes[0].set_yscale("log")
        axes[0].set_ylabel("candidates")
        axes[1].set_ylabel("mass kept")


# ---- texts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Texts:
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
        return _exp(mean_interval(self.nll))


def _output_tokens(lab: Lab) -> int:
    return 160 if lab.quick else 384


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


def _measure_texts(lab: Lab, findings: Findings) -> list[_Texts]:
    count, prompts = _count(lab), _prompts(lab)
    params = [
        SamplingParams(temperature=t, seed=lab.seed + i, ignore_eos=True, logprobs=0,
                       max_tokens=_output_tokens(lab))
        for t in _RUNS for i in range(count)
    ]  # fmt: skip
    tokens, nll = _generate(lab, prompts * len(_RUNS), params)
    texts = [
        _Texts(t, tokens[i * count : (i + 1) * count], nll[i * count : (i + 1) * count])
        for i, t in enumerate(_RUNS)
    ]
    by_t = {own.temperature: own for own in texts}
    findings.measured |= {
        "repeated 0": by_t[0.0].repeated,
        "repeated 1": by_t[1.0].repeated,
        "perplexity 1": by_t[1.0].perplexity,
        "perplexity 2": by_t[2.0].perplexity,
    }
    real = mean_interval([repeated(passage) for passage in _passages(lab)])
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
            f"{count} texts of {_output_tokens(lab)} tokens each; perplexity to the model itself "
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


def _conclude_pair(findings: Findings, what: str, more: Interval, less: Interval) -> None:
    findings.conclude(
        f"{what}: {interval(more.to_dict())} against {interval(less.to_dict())}.",
        resolved(more, less) and more.value > less.value,
    )


def _draw_breaking(lab: Lab, texts: Sequence[_Texts], predicted: Mapping[str, Prediction]) -> None:
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


def _grid(lab: Lab) -> Table:
    """One prompt at every pair of temperature and top-p, one seed."""
    pairs = [(t, p) for t in _GRID_T for p in _GRID_P]
    prompt = _prompts(lab)[1]
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
