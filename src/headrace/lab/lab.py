"""Lab: what one run of an experiment is given. Models, text, the machine, figures, progress.

Everything that an experiment needs from outside comes through here, so that its own file holds
nothing but the experiment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headrace.bench.conditions import activations_of, machine_conditions
from headrace.engine.config import Machine
from headrace.engine.model import OpenModel, open_model, vocabulary_of
from headrace.errors import UsageError
from headrace.formats.fetching import Reporter, Silent
from headrace.lab import plots
from headrace.lab.english import English, english
from headrace.lab.progress import Progress
from headrace.lab.values import Figure
from headrace.limits.machine import MachineProbe
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.kv import KVFormat
from headrace.verify.faults import NO_FAULT, Fault
from headrace.verify.subject import Subject
from headrace.verify.workload import QUICK

#: What an experiment that makes its own models opens, where it opens any.
USUAL_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person chooses for a run. model: as for `headrace generate`; None = the experiment's
    own. text: a UTF-8 file instead of the usual English. inject: name of a fault to plant."""

    model: str | None = None
    quick: bool = False
    seed: int = 1
    threads: int | None = None
    inject: str | None = None
    text: Path | None = None
    offline: bool | None = None


class Lab:
    """One run. out: the run's own directory, for figures and whatever else it keeps. One thread."""

    def __init__(
        self,
        settings: Settings,
        out: Path,
        progress: Progress,
        reporter: Reporter | None = None,
        default_model: str | None = None,
    ) -> None:
        self.settings = settings
        usual = default_model or USUAL_MODEL
        self.model = usual if settings.model is None else settings.model
        self.out = out
        self._progress = progress
        self._reporter = reporter or Silent()
        self._models: dict[tuple[str, str | None], OpenModel] = {}
        self._figures: dict[str, Figure] = {}
        self._rates: list[MachineRates] = []
        #: What an experiment's check found and its measurement uses again.
        self.kept: dict[str, Any] = {}
        #: Held, as a lock, until the result is in its place or the run has failed.
        self.held = ExitStack()
        #: Directories outside `out` that nobody needs once the result is in its place.
        self.spent: list[Path] = []

    @property
    def quick(self) -> bool:
        return self.settings.quick

    @property
    def seed(self) -> int:
        return self.settings.seed

    @cached_property
    def threads(self) -> int:
        """Worker threads: as chosen, else all CPUs that this process may use."""
        chosen = self.settings.threads
        return Machine.probe(os.environ).num_cpus if chosen is None else chosen

    def random(self, stream: int = 0) -> np.random.Generator:
        """Random numbers of this run's seed; another stream, other numbers."""
        return np.random.default_rng([self.seed, stream])

    # ---- models ---------------------------------------------------------------------------------

    def open(self, name: str | None = None, *, quantize: str | None = None) -> OpenModel:
        """A model (default: the run's), opened once."""
        name = name or self.model
        key = (name, quantize)
        if key not in self._models:
            self._models[key] = open_model(
                name,
                quantize=quantize,
                num_threads=self.threads,
                offline=self.settings.offline,
                progress=self._reporter,
            )
        return self._models[key]

    @cached_property
    def fault(self) -> Fault:
        """The planted fault; NO_FAULT as a rule. Raises UsageError for one that the run's model
        cannot have."""
        if self.settings.inject is None:
            return NO_FAULT
        from headrace.verify.faults import find_fault

        return find_fault(self.settings.inject, self.open().program)

    def subject(self, name: str | None = None, *, length: int = QUICK, **options: Any) -> Subject:
        """A model as `headrace verify` sees it, with the fault planted in every engine it builds.
        options: more fields of Subject."""
        model = self.open(name)
        fields: dict[str, Any] = {
            "num_ids": vocabulary_of(model).num_ids,
            "encode": lambda text: model.tokenizer.encode(text, add_special=False),
            "num_threads": self.threads,
            "fault": self.fault,
            "length": length,
            "name": model.name,
        } | options
        return Subject(model.program, **fields)

    def costs(
        self,
        model: OpenModel | None = None,
        *,
        kv_format: KVFormat = KVFormat.BF16,
        cache_bytes: int | None = None,
    ) -> CostModel:
        """The cost interpreter of a model (default: the run's)."""
        program = (model or self.open()).program
        return CostModel(program, kv_format=kv_format, cache_bytes=cache_bytes)

    # ---- text -----------------------------------------------------------------------------------

    @cached_property
    def text(self) -> English:
        """Real English."""
        settings = self.settings
        return english(settings.text, offline=settings.offline, reporter=self._reporter)

    def english(self, num_tokens: int, name: str | None = None, *, skip: int = 20_000) -> list[int]:
        """Exactly num_tokens ids of that text, from its character `skip` on. Raises UsageError
        where the text is too short."""
        tokenizer = self.open(name).tokenizer
        piece = self.text.text[skip : skip + 16 * num_tokens + 200]
        ids = tokenizer.encode(piece, add_special=False)[:num_tokens]
        if len(ids) < num_tokens:
            raise UsageError(
                f"{self.text.name} is too short: {num_tokens} tokens are wanted from character "
                f"{skip:,} on, and there are {len(ids)}."
            )
        return ids

    def passages(self, count: int, num_tokens: int) -> list[list[int]]:
        """count pieces of that text of exactly num_tokens ids, at even distances all over it.
        Raises UsageError where the text is too short."""
        length = len(self.text.text)
        first = min(20_000, length // 10)  # what comes before is often a licence or a title
        places = (first + i * (length - first) // count for i in range(count))
        return [self.english(num_tokens, skip=place) for place in places]

    # ---- the machine ----------------------------------------------------------------------------

    @cached_property
    def _probe(self) -> MachineProbe:
        return MachineProbe(self.threads)

    def rates(self) -> MachineRates:
        """What the machine can do right now (0.2 s). All probes of a run are kept in its result."""
        rates = self._probe.rates()
        self._rates.append(rates)
        return rates

    def conditions(self) -> dict[str, Any]:
        """What the figures of the run hold for: JSON values."""
        conditions = machine_conditions() | {"threads": self.threads, "seed": self.seed}
        conditions |= {
            "kv_format": "bf16",  # unless a table says another
            "model_load_included": False,
            "warm_up_included": False,
            "device_synchronised": True,
        }
        conditions["models"] = [
            {
                "name": name,
                "quantize": quantize,
                "weight_bytes": model.weight_bytes,
                "weights": sorted({t.format.name for t in model.program.weights.values()}),
                "activations": activations_of(model),
            }
            for (name, quantize), model in self._models.items()
        ]
        if "text" in self.__dict__:
            conditions["text"] = self.text.describe()
        conditions["probes"] = [rates.to_dict() for rates in self._rates]
        return conditions

    # ---- progress and files ---------------------------------------------------------------------

    @contextmanager
    def stage(self, text: str, share: float = 1.0) -> Iterator[None]:
        """A part of the run; share: of the enclosing stage."""
        with self._progress.stage(text, share):
            yield

    def tell(self, text: str, done: float | None = None) -> None:
        """What goes on now; done: of the current stage, 0 … 1."""
        self._progress.tell(text, done)

    @contextmanager
    def figure(
        self, name: str, caption: str, alt: str, *, rows: int = 1, columns: int = 1
    ) -> Iterator[tuple[Any, Any]]:
        """(figure, axes) of matplotlib, kept as NAME.png; listed in the result by itself."""
        with plots.figure(self.out / f"{name}.png", rows, columns) as drawn:
            yield drawn
        self._figures[name] = Figure(f"{name}.png", caption, alt)

    @property
    def figures(self) -> list[Figure]:
        """All that were drawn, in order."""
        return list(self._figures.values())

    def write_json(self, name: str, value: Any) -> None:
        """NAME in the run's directory."""
        text = json.dumps(value, ensure_ascii=False, indent=1)
        (self.out / name).write_text(text + "\n", encoding="utf-8")
