"""The variants compute right: the training's fast ops, and the native path with any weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headrace.engine.llm import LLM
from headrace.engine.model import OpenModel
from headrace.engine.params import SamplingParams
from headrace.errors import UsageError
from headrace.lab.heads.variants import EQUAL, NAMES, Plan, num_parameters, spread
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.statistics import largest
from headrace.lab.training.batch import windows
from headrace.lab.training.model import Trainee
from headrace.lab.training.objective import cross_entropy
from headrace.lab.values import Check
from headrace.ops.program import Program
from headrace.ops.reference import ReferenceModel
from headrace.verify.faults import NO_FAULT, Fault, find_fault
from headrace.verify.ladder import REFERENCE_RUNGS
from headrace.verify.reference import native_is_reference
from headrace.verify.subject import Subject
from headrace.verify.workload import QUICK

#: float64 rounding of a loss and of its gradients, as a share of the largest.
_FLOAT64 = 1e-9
#: Tokens of a greedy answer.
_ANSWER = 48


def equal_budgets(plan: Plan) -> Check:
    """The variants of both tasks have the same number of parameters."""
    worst, parts = 0.0, []
    for task, sizes, vocab in (
        ("language", plan.language, plan.vocab_size),
        ("recall", plan.recall.sizes, plan.recall.vocab_size),
    ):
        counts = {name: num_parameters(sizes.outline(name, vocab)) for name in NAMES}
        worst = max(worst, spread(counts))
        parts.append(f"{task} " + ", ".join(f"{n} {c:,}" for n, c in counts.items()))
    detail = f"{'; '.join(parts)}; largest ÷ smallest − 1 = {100 * worst:.2f} %"
    return Check("equal budgets", worst <= EQUAL, detail)


def training_is_reference(plan: Plan, name: str, seed: int) -> Check:
    """Loss and every gradient of the training's ops = the reference interpreter's, in float64."""
    vocab = plan.vocab_size
    model = Trainee(plan.language.description(name, vocab), seed=seed, dtype=torch.float64)
    ids = torch.randint(0, vocab, (2, 25), generator=torch.Generator().manual_seed(seed))
    batch = windows(ids.numpy())
    found = cross_entropy(model, batch)
    found.backward()  # type: ignore[no-untyped-call]
    own = {n: p.grad.clone() for n, p in model.parameters.items() if p.grad is not None}
    for p in model.parameters.values():
        p.grad = None
    reference = ReferenceModel(model.loaded(), torch.float64, overrides=model.parameters)
    logits = torch.cat(reference.logits(batch.tokens.tolist()))
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets).flatten())
    expected.backward()  # type: ignore[no-untyped-call]
    errors = [abs(float((found - expected).detach()))]
    for n, p in model.parameters.items():
        assert p.grad is not None
        errors.append(float((p.grad - own[n]).abs().max() / p.grad.abs().max()))
    worst = largest(errors)
    detail = f"max relative |Δ| {worst:.2g} over the loss and {len(own)} gradients, float64"
    return Check(f"{name}: training = reference", worst <= _FLOAT64, detail)


def untrained_checks(plan: Plan, name: str, seed: int, fault: str | None) -> list[Check]:
    """The native path with random weights. fault: planted where the variant can have it."""
    model = Trainee(plan.language.description(name, plan.vocab_size), seed=seed).loaded()
    subject = Subject(
        model, num_ids=plan.vocab_size, fault=_fault(fault, model), length=QUICK, name=name
    )
    return _rungs(f"{name}, untrained", subject)


def trained_checks(name: str, model: OpenModel, prompts: list[str]) -> list[Check]:
    """The native path with the weights as they were saved and opened by name."""
    tokenizer = model.tokenizer
    subject = Subject(
        model.program,
        num_ids=model.program.vocab_size,
        encode=lambda text: tokenizer.encode(text, add_special=False),
        length=QUICK,
        name=name,
    )
    checks = _rungs(f"{name}, trained", subject)
    bound = native_is_reference(subject).bound
    return [
        *checks,
        greedy_check(f"{name}, trained: greedy text = reference", model, prompts, bound),
    ]


def greedy_check(label: str, model: OpenModel, prompts: list[str], bound: float) -> Check:
    """The native engine's greedy tokens are the reference's most likely ones, one by one. Where the
    reference's best two are closer than twice the bound of a logit, either is right."""
    encoded = [model.tokenizer.encode(p, add_special=False) for p in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=_ANSWER, ignore_eos=True)
    longest = max(map(len, encoded)) + _ANSWER
    with LLM(model, max_model_len=longest + 1, max_num_seqs=len(prompts)) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in encoded], params)
    reference = ReferenceModel(model.program, torch.float32)
    equal = ties = wrong = 0
    for ids, output in zip(encoded, outputs, strict=True):
        drawn = output.outputs[0].token_ids
        whole = ids + drawn
        with torch.no_grad():
            places = range(len(ids) - 1, len(whole) - 1)
            (logits,) = reference.logits([whole[:-1]], [places])
        for row, token in zip(logits, drawn, strict=True):
            short = float(row.max() - row[token])
            equal += short == 0
            ties += 0 < short <= 2 * bound
            wrong += not short <= 2 * bound  # or no number
    detail = f"{equal} tokens equal, {ties} near ties (closer than {2 * bound:.2g}), {wrong} wrong"
    return Check(label, wrong == 0 and equal > 0, detail)


def _rungs(label: str, subject: Subject) -> list[Check]:
    return rung_checks(subject, REFERENCE_RUNGS, f"{label}: ")


def _fault(name: str | None, program: Program) -> Fault:
    """The fault, where the variant can have it (a head map needs more than one KV head)."""
    if name is None:
        return NO_FAULT
    try:
        return find_fault(name, program)
    except UsageError:
        return NO_FAULT


def failures(checks: list[Check]) -> Mapping[str, str]:
    """Name → detail of those that failed."""
    return {check.name: check.detail for check in checks if not check.passed}
