"""MODEL → PlanModel: from a file's header, a config.json, an alias or a built-in description.

No weight is read: a GGUF file cut off after its header is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.outline import ModelOutline


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A model to plan with. name: as it was given. program: shapes and number formats of its
    weights. source: file, or page of the description. description: one line for people."""

    name: str
    program: ModelOutline
    source: str
    description: str
