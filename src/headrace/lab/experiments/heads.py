"""heads: MHA, GQA and MQA trained from nothing with equal numbers of parameters."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from headrace import __version__
from headrace.bench.gate import CheckFailed
from headrace.engine.model import OpenModel, open_model
from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write, cache_root
from headrace.lab.experiment import Experiment
from headrace.lab.heads.decoding import decode_bound, measure
from headrace.lab.heads.findings import OTHERS, Outcome, Runs, findings
from headrace.lab.heads.pictures import ALT, CAPTION, draw
from headrace.lab.heads.variants import (
    FULL,
    NAMES,
    QUICK,
    Plan,
    language_job,
    recall_job,
    work,
)
from headrace.lab.lab import Lab
from headrace.lab.training.jobs import STATE, Job, run_jobs
from headrace.lab.training.text import END, TextTokens, load_tokens, split_text, tokenize
from headrace.lab.values import Check, Findings, Kind, Prediction
from headrace.ops.cost import CostModel

_SEEDS = 3
#: Differences of validation loss (nats per token) below this are called none.
_SAME_LOSS = 0.05


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
    default_model = None
    quick_s = 480.0
    full_s = 4800.0
    check_share = 0.04
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
        for name in OTHERS:
            found.append(
                Prediction(
                    f"decode {name}", f"{name} over MHA: decode tokens/s, {plan.batch} sequences "
                    f"of {plan.depth} positions", bounds[name] / bounds["MHA"], "×",
                    f"ratio of the bounds, {bounds[name]:,.0f} and {bounds['MHA']:,.0f} tokens/s: "
                    "all weights and all of the cache are read in every step", tolerance=1.25,
                )
            )  # fmt: skip
        for name in OTHERS:
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
        from headrace.lab.heads import checks as prove  # loads torch

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
        lab.held.enter_context(alone(directory))
        with lab.stage("training", 0.88):
            tokens, tokenizer_json = _prepared(lab, plan, directory)
            text, recall = _train(lab, plan, directory)
        with lab.stage("opening the trained models", 0.04):
            models = _saved(lab, plan, directory, tokenizer_json)
            _prove_trained(lab, plan, models)
        with lab.stage("decoding", 0.08):
            speeds = measure(models, plan, lab.threads, lab.rates, lab.tell)
        outcome = Outcome(
            plan, tuple(_seeds(lab)), text, recall, speeds, tokens, lab.text.describe()
        )
        found = findings(outcome)
        with lab.figure("variants", CAPTION, ALT, rows=2, columns=2) as (_, axes):
            draw(axes, outcome)
        lab.spent.append(directory)
        return found


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


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Holds a directory of checkpoints, which is made where there is none. Raises UsageError while
    another run holds it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("a")
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be written: {error.strerror}; set HEADRACE_CACHE to another "
            "directory."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"Another run is training these models (in {directory}); wait for its end, or give "
                "another --seed."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


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


def _train(lab: Lab, plan: Plan, directory: Path) -> tuple[Runs, Runs]:
    """(language models, recall models), by variant, one per seed."""
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
            f"training {name}, {tok_per_s:,.0f} tok/s; {done} of {len(jobs)} models done",
            sum(reached.values()) / total,
        )

    found = run_jobs(jobs, workers=lab.threads, on_progress=told)
    return (
        {n: [found[f"text-{n}-{seed}"] for seed in _seeds(lab)] for n in NAMES},
        {n: [found[f"recall-{n}-{seed}"] for seed in _seeds(lab)] for n in NAMES},
    )


def _saved(lab: Lab, plan: Plan, directory: Path, tokenizer_json: str) -> dict[str, OpenModel]:
    """The first seed's models as files in the result, opened by the names of their directories."""
    from headrace.lab.training.checkpoint import load_state  # loads torch
    from headrace.lab.training.model import Trainee

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
    from headrace.lab.heads import checks as prove  # loads torch

    _, validation = split_text(lab.text.text)
    prompts = [piece[:200] for piece in validation[:3]]
    for name, model in models.items():
        lab.tell(f"checking the trained {name}")
        failed = prove.failures(prove.trained_checks(name, model, prompts))
        if failed:
            first = next(iter(failed))
            raise CheckFailed(f"No speed is printed: failed {first} ({failed[first]}).")
