"""Result: all of one run as JSON values, and back. The file is the interface: `report`, the pages
of documentation and the dashboard read it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ModelFileError, UsageError
from headrace.formats.files import read_small_file
from headrace.lab.experiment import Experiment
from headrace.lab.statistics import Interval
from headrace.lab.values import Check, Findings, Prediction, verdict

FILE = "result.json"
FORMAT = 1
_MOST_BYTES = 16 << 20


@dataclass(slots=True)
class Result:
    """data: as written to result.json; keys are listed in docs/lab/index.md."""

    data: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.data["experiment"])

    @property
    def passed(self) -> bool:
        return bool(self.data["passed"])


def make_result(
    experiment: Experiment,
    *,
    quick: bool,
    inject: str | None,
    predictions: list[Prediction],
    checks: list[Check],
    findings: Findings | None,
    conditions: dict[str, Any],
    started: str,
    seconds: float,
) -> Result:
    """findings: None where a check failed and nothing was measured."""
    found = findings or Findings()
    return Result(
        _plain({
            "format": FORMAT,
            "experiment": experiment.name,
            "title": experiment.title,
            "question": experiment.question,
            "claim": experiment.claim,
            "try_this": list(experiment.try_this),
            "quick": quick,
            "inject": inject,
            "passed": bool(checks) and all(check.passed for check in checks),
            "checks": [asdict(check) for check in checks],
            "predictions": [_judged(p, found.measured.get(p.key)) for p in predictions],
            "measured": {key: i.to_dict() for key, i in found.measured.items()},
            "tables": [asdict(table) for table in found.tables],
            "conclusions": [asdict(conclusion) for conclusion in found.conclusions],
            "figures": [asdict(figure) for figure in found.figures],
            "notes": found.notes,
            "conditions": conditions,
            "started": started,
            "seconds": round(seconds, 1),
        })
    )  # fmt: skip


def _judged(prediction: Prediction, measured: Interval | None) -> dict[str, Any]:
    low, high = prediction.band
    return {
        "key": prediction.key,
        "what": prediction.what,
        "value": prediction.value,
        "unit": prediction.unit,
        "how": prediction.how,
        "kind": prediction.kind.value,
        "tolerance": prediction.tolerance,
        "band": [low, high],
        "measured": None if measured is None else measured.to_dict(),
        "verdict": verdict(prediction, measured).value,
    }


def read_result(directory: Path) -> Result:
    """Raises UsageError where there is none, or none that this version wrote."""
    path = directory / FILE
    try:
        data = json.loads(read_small_file(path, _MOST_BYTES))
    except ModelFileError as error:
        raise UsageError(f"{error} `headrace lab run NAME --out DIR` writes it.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}; run the experiment again.") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or "experiment" not in data:
        raise UsageError(f"{path} is no result of this version; run the experiment again.")
    return Result(data)


def _plain(value: Any) -> Any:
    """JSON has no infinity: None takes its place. numpy's numbers become Python's."""
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item") and not isinstance(value, str | int | float | bool):
        return _plain(value.item())
    return value
