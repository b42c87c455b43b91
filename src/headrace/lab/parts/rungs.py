"""Rungs of `headrace verify` as checks of an experiment."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.lab.values import Check
from headrace.verify.ladder import run_ladder
from headrace.verify.subject import Subject


def rung_checks(subject: Subject, names: Sequence[str], label: str = "") -> list[Check]:
    """Exactly these rungs, whatever becomes of them; one that could not run (torch is missing) has
    failed. label: before their names."""
    report = run_ladder(subject, only=lambda name: name in names)
    found = {rung.name: rung for rung in report.rungs}
    checks = []
    for name in names:
        if name not in found:
            checks.append(Check(label + name, False, report.not_run[name]))
            continue
        rung = found[name]
        bound = f", bound {rung.bound:.3g}" if rung.bound else ""
        told = f"max |Δ| {rung.max_abs_error:.3g}{bound}; {rung.detail.strip()}"
        checks.append(Check(label + name, rung.passed, told))
    return checks
