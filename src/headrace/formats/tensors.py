"""Tensors as they lie in files, whatever the file format, and the checkpoint that holds them.

Both file readers (GGUF, safetensors) end in these types; the models room sees them through the
Checkpoint protocol of `models/weights.py`. Nothing here copies tensor bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import ModelFileError
from headrace.formats.files import shorten
from headrace.quant.formats import FORMATS, NumberFormat
from headrace.quant.tensor import HostTensor

#: The number formats we read, as error messages list them.
READABLE_FORMATS = ", ".join(FORMATS)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of one file.

    shape: row-major, innermost axis last, at least one axis. format: None when Headrace does not
    compute with `format_name` (integer tables, IQ types); such a tensor may be listed, not loaded.
    data: its bytes in the mapped file; None where `format` is None and the size is unknown, or
    where only the header was read.
    """

    name: str
    shape: tuple[int, ...]
    format: NumberFormat | None
    format_name: str
    file: str
    data: memoryview | None

    def host(self) -> HostTensor:
        """The tensor as a HostTensor: a view, no copy. Raises ModelFileError if not readable."""
        if self.format is None or self.data is None:
            raise ModelFileError(
                f"{self.file}: tensor {shorten(self.name)} is stored as {self.format_name}, "
                f"which Headrace does not read (it reads {READABLE_FORMATS})."
            )
        if 0 in self.shape:
            raise ModelFileError(f"{self.file}: tensor {shorten(self.name)} has no elements.")
        row_bytes = self.format.row_bytes(self.shape[-1])
        data = np.frombuffer(self.data, dtype=np.uint8).reshape(-1, row_bytes)
        return HostTensor(format=self.format, shape=self.shape, data=data)


class TensorTable(Mapping[str, HostTensor]):
    """File name of a tensor → HostTensor, made when asked for.

    Names, order and `in` never fail. `[name]` raises KeyError for an unknown name, and
    ModelFileError for a tensor in a number format that we do not read, so a file may hold such
    tensors as long as no one needs them.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> HostTensor:
        return self._tensors[name].host()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def describe(self, name: str) -> StoredTensor:
        """What the file says of a tensor, readable or not. Raises KeyError."""
        return self._tensors[name]


@dataclass(frozen=True, slots=True)
class FileCheckpoint:
    """An opened model file or directory; satisfies `models.weights.Checkpoint`.

    kind: "gguf" | "hf". architecture: the file's own name for it. metadata: GGUF key-values or
    config.json. files: every file that holds tensors, in order.
    """

    kind: str
    architecture: str
    metadata: Mapping[str, object]
    tensors: TensorTable
    source: str
    files: tuple[Path, ...]
