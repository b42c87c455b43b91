"""heads: MHA, GQA and MQA trained from nothing with equal numbers of parameters."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headrace import __version__
from headrace.bench.gate import CheckFailed
from headrace.engine.model import OpenModel, open_model
from headrace.formats.cache_dirs import atomic_write, cache_root
from headrace.lab.experiment import Cell, Check, Experiment, Findings, Kind, Prediction, Table
from headrace.lab.heads import checks as prove
from headrace.lab.heads import pictures
from headrace.lab.heads.decoding import Speed, decode_bound, measure
from headrace.lab.heads.variants import (
    FULL,
    NAMES,
    QUICK,
    Plan,
    language_job,
    num_parameters,
    recall_job,
    work,
)
from headrace.lab.lab import Lab
from headrace.lab.statistics import (
    Interval,
    exact,
    mean_interval,
    median_interval,
    ratio_interval,
    resolved,
    share_interval,
)
from headrace.lab.training.checkpoint import load_state
from headrace.lab.training.jobs import STATE, Done, Job, run_jobs
from headrace.lab.training.model import Trainee
from headrace.lab.training.text import END, TextTokens, load_tokens, split_text, tokenize
from headrace.ops.cost import CostModel

_SEEDS = 3
#: Differences of validation loss (nats per token) below this are called none.
_SAME_LOSS = 0.05
#: From this training loss on (nats) a model is said to have learnt to recall; guessing costs 2.08.
_LEARNT = 1.0
_OTHERS = NAMES[1:]


class Heads(Experiment):
    """See docs/lab/heads.md."""

    name = "heads"
    title = "Fewer KV heads, the same number of parameters"
    question = "What do GQA and MQA cost in quality, and what do they save, at equal parameters?"
    claim = (
        "Query heads can share KV heads: the cache shrinks by H ÷ K and decoding gets faster, with "
        "a quality near that of MHA for GQA and a little below for MQA (Shazeer, arXiv:1911.02150; "
        "Ainslie et al., arXiv:2305.13245)."
    )
    quick_s = 480.0
    full_s = 7200.0
    faults = ("kv-head-map",)
    try_this = (
        "`--seed 10`: three other seeds. Do the three losses keep their order?",
        "`--text FILE` with a text of your own, the longer the better.",
        "without `--quick`: models of 5 million parameters, 2 million tokens each.",
        "`headrace generate lab-results/heads/models/GQA -p 'A hacker is'`: what it learnt.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        plan, rates = _plan(lab), lab.rates()
        outlines = {name: plan.language.outline(name, plan.vocab_size) for name in NAMES}
        found = [
            Prediction(
                f"cache {name}", f"{name}: cache bytes per token",
                CostModel(outline).kv_bytes_per_position, "B",
                "2 · L · K · D · 2 bytes (bf16), from the program's KV groups", tolerance=1.0,
            )
            for name, outline in outlines.items()
        ]  # fmt: skip
        context = plan.depth + plan.outputs // 2
        bounds = {n: decode_bound(o, rates, plan, context) for n, o in outlines.items()}
        for name in _OTHERS:
            found.append(
                Prediction(
                    f"decode {name}", f"{name} over MHA: decode tokens/s, {plan.batch} sequences "
                    f"of {plan.depth} positions", bounds[name] / bounds["MHA"], "×",
                    f"ratio of the bounds, {bounds[name]:,.0f} and {bounds['MHA']:,.0f} tokens/s: "
                    "all weights and all of the cache are read in every step", tolerance=1.25,
                )
            )  # fmt: skip
        for name in _OTHERS:
            found.append(
                Prediction(
                    f"loss {name}", f"{name} less MHA: validation loss, seed by seed", 0.0, "nats",
                    "no formula; published gaps are below one per cent, and models this small, "
                    "trained this shortly, should not show them", tolerance=1.0, slack=_SAME_LOSS,
                )
            )  # fmt: skip
        for name in NAMES:
            found.append(
                Prediction(
                    f"recall {name}", f"{name}: recalled answers", 0.95, "of all",
                    "one KV head is enough to look a fact up by its key", Kind.AT_LEAST,
                    tolerance=1.0,
                )
            )  # fmt: skip
        return found

    def check(self, lab: Lab) -> list[Check]:
        plan = _plan(lab)
        found = [prove.equal_budgets(plan)]
        for i, name in enumerate(NAMES):
            lab.tell(f"checking {name}", i / len(NAMES))
            found.append(prove.training_is_reference(plan, name, lab.seed))
            found += prove.untrained_checks(plan, name, lab.seed, lab.settings.inject)
        return found

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        plan = _plan(lab)
        directory = _work_directory(lab, plan)
        with lab.stage("training", 0.88):
            tokens, tokenizer_json = _prepared(lab, plan, directory)
            trained = _train(lab, plan, directory)
        with lab.stage("opening the trained models", 0.04):
            models = _saved(lab, plan, directory, tokenizer_json)
            _prove_trained(lab, plan, models)
        with lab.stage("decoding", 0.08):
            speeds = measure(models, plan, lab.threads, lab.rates, lab.tell)
        findings = _findings(lab, plan, trained, speeds, tokens)
        shutil.rmtree(directory)
        return findings


@dataclass(frozen=True, slots=True)
class _Trained:
    """Results by variant, one per seed, in the order of the seeds."""

    text: Mapping[str, list[Done]]
    recall: Mapping[str, list[Done]]


def _plan(lab: Lab) -> Plan:
    return QUICK if lab.quick else FULL


def _seeds(lab: Lab) -> range:
    return range(lab.seed, lab.seed + _SEEDS)


def _work_directory(lab: Lab, plan: Plan) -> Path:
    """Where checkpoints lie until the run is done: one directory per text, plan, seed and version,
    so that an interrupted run goes on where it was."""
    sizes = [plan.vocab_size, asdict(plan.language), asdict(plan.recall)]
    what = json.dumps([lab.text.sha256, sizes, lab.seed, __version__], sort_keys=True)
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return cache_root() / "lab" / f"heads-{digest}"


def _prepared(lab: Lab, plan: Plan, directory: Path) -> tuple[TextTokens, str]:
    """The token ids, and the tokenizer as JSON; made once."""
    ids, words = directory / "tokens.npz", directory / "tokenizer.json"
    if not (ids.is_file() and words.is_file()):
        lab.tell("training the tokenizer")
        tokens, tokenizer = tokenize(lab.text.text, plan.vocab_size)
        with atomic_write(words) as file:
            file.write(tokenizer.to_str().encode())
        tokens.save(ids)
    return load_tokens(ids), words.read_text(encoding="utf-8")


def _train(lab: Lab, plan: Plan, directory: Path) -> _Trained:
    ids = directory / "tokens.npz"
    places = [(seed, name) for seed in _seeds(lab) for name in NAMES]
    text = [language_job(plan, name, seed, ids, directory) for seed, name in places]
    recall = [recall_job(plan, name, seed, directory) for seed, name in places]
    jobs: list[Job] = [*text, *recall]
    total, reached = sum(map(work, jobs)), dict.fromkeys((job.name for job in jobs), 0.0)
    costs = {job.name: work(job) for job in jobs}

    def told(name: str, step: int, steps: int, tok_per_s: float) -> None:
        reached[name] = costs[name] * step / steps
        done = sum(reached[n] == costs[n] for n in reached)
        lab.tell(
            f"training {name}, {tok_per_s:,.0f} tok/s, {done} of {len(jobs)} done",
            sum(reached.values()) / total,
        )

    found = run_jobs(jobs, workers=lab.threads, on_progress=told)
    return _Trained(
        {n: [found[f"text-{n}-{seed}"] for seed in _seeds(lab)] for n in NAMES},
        {n: [found[f"recall-{n}-{seed}"] for seed in _seeds(lab)] for n in NAMES},
    )


def _saved(lab: Lab, plan: Plan, directory: Path, tokenizer_json: str) -> dict[str, OpenModel]:
    """The first seed's models as files in the result, opened by the names of their directories."""
    models = {}
    for name in NAMES:
        state = load_state(directory / f"text-{name}-{lab.seed}" / STATE)
        description = plan.language.description(name, plan.vocab_size)
        trainee = Trainee(description, parameters=state.parameters)
        path = trainee.save(lab.out / "models" / name, tokenizer_json, eos=END)
        models[name] = replace(open_model(str(path), offline=True), name=name)
    return models


def _prove_trained(lab: Lab, plan: Plan, models: Mapping[str, OpenModel]) -> None:
    """Raises CheckFailed: no speed of a model that computes wrong."""
    _, validation = split_text(lab.text.text)
    prompts = [piece[:200] for piece in validation[:3]]
    for name, model in models.items():
        lab.tell(f"checking the trained {name}")
        failed = prove.failures(prove.trained_checks(name, model, prompts))
        if failed:
            first = next(iter(failed))
            raise CheckFailed(f"No speed is printed: failed {first} ({failed[first]}).")


def _findings(
    lab: Lab, plan: Plan, trained: _Trained, speeds: Mapping[str, Speed], tokens: TextTokens
) -> Findings:
    findings = Findings()
    losses = {n: mean_interval([d.loss for d in trained.text[n]]) for n in NAMES}
    recalls = {n: _recall(trained.recall[n]) for n in NAMES}
    rapid = {n: median_interval(speeds[n].tok_per_s) for n in NAMES}
    for name in NAMES:
        findings.measured[f"cache {name}"] = exact(speeds[name].cache_bytes)
        findings.measured[f"recall {name}"] = recalls[name]
    base = trained.text["MHA"]
    for name in _OTHERS:
        ratio = ratio_interval(speeds[name].tok_per_s, speeds["MHA"].tok_per_s)
        gaps = [d.loss - b.loss for d, b in zip(trained.text[name], base, strict=True)]
        findings.measured[f"decode {name}"] = ratio
        findings.measured[f"loss {name}"] = mean_interval(gaps)
    findings.tables = [
        _summary(plan, losses, recalls, rapid, speeds),
        _trainings(lab, trained, tokens),
        _recalls(lab, trained.recall),
    ]
    _conclude(findings, losses, recalls, rapid, speeds)
    findings.notes.append(
        f"{_SEEDS} seeds: {', '.join(map(str, _seeds(lab)))}. A seed fixes the first weights and "
        "the order of the data, which is the same for all variants. Intervals over seeds are "
        "Student's with two degrees of freedom, and wide."
    )
    findings.notes.append(
        f"Decoding: the models of seed {lab.seed}, float32 weights, bf16 KV, {plan.batch} "
        f"sequences with {plan.depth} positions in the cache. They were trained on windows of "
        f"{plan.language.length} tokens; speed does not depend on what the text is."
    )
    _draw(lab, trained, losses, rapid, speeds)
    return findings


def _recall(runs: list[Done]) -> Interval:
    """The mean over seeds; a share ends at 1."""
    found = mean_interval([d.num_right / d.num_scored for d in runs])
    return Interval(found.value, max(found.low, 0.0), min(found.high, 1.0), found.n, found.what)


def _summary(
    plan: Plan, losses: Mapping[str, Interval], recalls: Mapping[str, Interval],
    rapid: Mapping[str, Interval], speeds: Mapping[str, Speed],
) -> Table:  # fmt: skip
    rows: list[list[Cell]] = []
    for name in NAMES:
        outline = plan.language.outline(name, plan.vocab_size)
        loss, recall, speed = losses[name], recalls[name], rapid[name]
        of_bound = median_interval(speeds[name].of_bound)
        rows.append([
            name, outline.config.num_kv_heads, outline.config.intermediate_size,
            num_parameters(outline), speeds[name].cache_bytes,
            loss.value, f"{loss.low:.3f} … {loss.high:.3f}",
            recall.value, f"{recall.low:.3f} … {recall.high:.3f}",
            speed.value, f"{speed.low:,.0f} … {speed.high:,.0f}", of_bound.value,
        ])  # fmt: skip
    columns = [
        "variant", "KV heads", "F", "parameters", "cache bytes per token", "validation loss",
        "95 % over seeds", "recall", "95 % over seeds", "decode tok/s", "interval",
        "share of the bound",
    ]  # fmt: skip
    note = (
        f"Loss in nats per token of a vocabulary of {plan.vocab_size}. Decode: {plan.batch} "
        f"sequences, {plan.depth} positions each."
    )
    return Table("variants", columns, rows, note)


def _trainings(lab: Lab, trained: _Trained, tokens: TextTokens) -> Table:
    rows: list[list[Cell]] = []
    for name in NAMES:
        for seed, done in zip(_seeds(lab), trained.text[name], strict=True):
            bits = done.loss / math.log(2) * done.num_scored / tokens.validation_bytes
            rows.append([
                name, seed, done.loss, bits, done.num_scored, done.history[-1][1],
                done.history[-1][0], done.num_tokens / done.seconds,
            ])  # fmt: skip
    columns = [
        "variant", "seed", "validation loss", "bits per byte", "tokens scored",
        "last training loss", "steps", "tok/s of training",
    ]  # fmt: skip
    note = (
        f"{lab.text.describe()}: {tokens.num_train:,} tokens to train on, "
        f"{tokens.num_validation:,} to validate with. tok/s: of one thread beside others."
    )
    return Table("language", columns, rows, note)


def _recalls(lab: Lab, runs: Mapping[str, list[Done]]) -> Table:
    rows: list[list[Cell]] = []
    for name in NAMES:
        for seed, done in zip(_seeds(lab), runs[name], strict=True):
            share = share_interval(done.num_right, done.num_scored)
            learnt = next((step for step, loss in done.history if loss < _LEARNT), None)
            rows.append([
                name, seed, share.value, share.low, share.high, done.num_scored, learnt
            ])  # fmt: skip
    columns = ["variant", "seed", "recalled", "low", "high", "questions", "learnt at step"]
    note = (
        f"low, high: Wilson's 95 % interval over the questions. learnt: training loss below "
        f"{_LEARNT:g} nats; guessing one of eight values costs 2.08."
    )
    return Table("recall", columns, rows, note)


def _conclude(
    findings: Findings, losses: Mapping[str, Interval], recalls: Mapping[str, Interval],
    rapid: Mapping[str, Interval], speeds: Mapping[str, Speed],
) -> None:  # fmt: skip
    for name in _OTHERS:
        ratio = speeds["MHA"].cache_bytes / speeds[name].cache_bytes
        findings.conclude(
            f"{name} keeps {speeds[name].cache_bytes:,.0f} bytes per token, {ratio:g} times fewer "
            f"than MHA's {speeds['MHA'].cache_bytes:,.0f}."
        )
    for what, values, higher, digits in (
        ("decode tokens/s", rapid, "decodes faster than", 0),
        ("validation loss", losses, "ends with a higher validation loss than", 3),
        ("recall", recalls, "recalls more than", 4),
    ):
        for one, two in (("GQA", "MHA"), ("MQA", "MHA"), ("MQA", "GQA")):
            a, b = values[one], values[two]
            first, second = (one, two) if a.value >= b.value else (two, one)
            shown = f"({_shown(values[first], digits)} against {_shown(values[second], digits)})"
            if resolved(a, b):
                findings.conclude(f"{first} {higher} {second} {shown}.")
            else:
                findings.conclude(f"{what} of {one} and {two} {shown}: the intervals overlap.",
                                  resolved=False)  # fmt: skip


def _shown(value: Interval, digits: int) -> str:
    return f"{value.value:,.{digits}f}, {value.low:,.{digits}f} … {value.high:,.{digits}f}"


def _draw(
    lab: Lab, trained: _Trained, losses: Mapping[str, Interval], rapid: Mapping[str, Interval],
    speeds: Mapping[str, Speed],
) -> None:  # fmt: skip
    caption = (
        f"{_SEEDS} seeds of each variant: learning (mean, and range as a band), validation loss "
        "with 95 % intervals over the seeds, and decoding on the native path."
    )
    alt = (
        "Four panels: training loss of the language models over steps; loss of the recall models "
        "over steps; validation losses with error bars; decode speed over cache bytes per token"
    )
    bounds = {
        n: median_interval([v / s for v, s in zip(speeds[n].tok_per_s, speeds[n].of_bound,
                                                  strict=True)]).value
        for n in NAMES
    }  # fmt: skip
    cache = {n: speeds[n].cache_bytes for n in NAMES}
    with lab.figure("heads", caption, alt, rows=2, columns=2) as (_, axes):
        pictures.draw_learning(axes[0][0], trained.text, "English text", "training loss, nats")
        pictures.draw_learning(axes[0][1], trained.recall, "recall", "training loss, nats")
        pictures.draw_values(axes[1][0], losses, "validation loss", "nats per token")
        pictures.draw_serving(axes[1][1], cache, rapid, bounds, "decoding, native path")
