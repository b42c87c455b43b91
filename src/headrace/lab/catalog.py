"""All experiments, in the order in which a newcomer takes them. Imports one only when asked."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping

from headrace.errors import UsageError
from headrace.lab.experiment import Experiment

#: Name → module and class, in the order of docs/lab/index.md: kv-cache, attention, sampling,
#: formats, batching, paging, speculation, heads, faults, roofline, budget.
EXPERIMENTS: Mapping[str, tuple[str, str]] = {
    "kv-cache": ("kv_cache", "KVCache"),
    "attention": ("attention", "Attention"),
    "sampling": ("sampling", "Sampling"),
    "formats": ("formats", "Formats"),
    "batching": ("batching", "Batching"),
    "paging": ("paging", "Paging"),
    "speculation": ("speculation", "Speculation"),
    "heads": ("heads", "Heads"),
    "faults": ("faults", "Faults"),
    "roofline": ("roofline", "Roofline"),
    "budget": ("budget", "Budget"),
}


def find(name: str) -> Experiment:
    """Raises UsageError for an unknown name."""
    place = EXPERIMENTS.get(name)
    if place is None:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else "`headrace lab list` names them."
        raise UsageError(f"There is no experiment {name!r}; {hint}")
    module, attribute = place
    found: type[Experiment] = getattr(
        importlib.import_module(f"headrace.lab.experiments.{module}"), attribute
    )
    return found()
