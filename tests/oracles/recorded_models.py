"""The models with recordings: four real files and a Q8_0 copy of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from q8_0 import q8_0_copy
from recording import DIRECTORY

from headrace.formats.sources import resolve

ALIASES = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")


@dataclass(frozen=True)
class RecordedModel:
    """A model file and where its recording lies. q8_0: the copy instead of the file itself."""

    alias: str
    q8_0: bool = False

    @property
    def name(self) -> str:
        return self.alias + ("-q8_0" if self.q8_0 else "")

    @property
    def recording(self) -> Path:
        return DIRECTORY / f"{self.name}.npz"

    def path(self) -> Path:
        """The GGUF file, fetched on first use; a copy is made on first use."""
        file = resolve(self.alias)
        return q8_0_copy(file) if self.q8_0 else file


ALL = tuple(RecordedModel(alias, q8) for alias in ALIASES for q8 in (False, True))
BY_NAME = {model.name: model for model in ALL}
