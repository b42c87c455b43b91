"""Copies of a GGUF file in few bits, made by llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from q8_0 import TEST_DATA

from headrace.formats.sources import resolve


@dataclass(frozen=True)
class LowBitModel:
    """A copy of a model. kind: llama.cpp's name of the mix. pure: every matrix in that format (or
    in what llama.cpp puts in its place where rows do not divide by 256)."""

    alias: str
    kind: str
    pure: bool

    @property
    def name(self) -> str:
        return f"{self.alias}.{self.kind.lower()}{'-pure' if self.pure else ''}"

    def path(self, directory: Path = TEST_DATA) -> Path:
        """The file, made on first use: written under another name, then renamed."""
        source = resolve(self.alias)
        target = directory / f"{self.name}.gguf"
        if not target.exists():
            directory.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.part-{os.getpid()}")
            try:
                self._write(source, part)
                part.rename(target)
            finally:
                part.unlink(missing_ok=True)
        return target

    def _write(self, source: Path, target: Path) -> None:
        import llama_cpp

        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{self.kind}")
        options.allow_requantize = True
        options.pure = self.pure
        options.nthread = 2
        code = llama_cpp.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(options)
        )
        if code != 0:
            raise RuntimeError(f"llama.cpp could not quantise {source} to {self.kind}: {code}")
