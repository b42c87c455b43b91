"""Writes small GGUF files with the `gguf` package's own writer, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from headrace.formats.sources import resolve
from headrace.quant.formats import FORMATS


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, object] | None = None,
    *,
    architecture: str | None = "llama",
    formats: Mapping[str, str] | None = None,
    alignment: int | None = None,
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    split_max_tensors: int = 0,
) -> list[Path]:
    """Writes a model and returns its files in order.

    tensors: name → float32 [rows, columns], or uint8 bytes of blocks for formats that the package
    cannot quantise. formats: name → number format (F32 where not given). metadata: plain Python
    values (int → uint32, float → float32), or (GGUFValueType, value) for an exact type.
    """
    writer = gguf.GGUFWriter(
        path, architecture, endianess=endianess, split_max_tensors=split_max_tensors
    )
    if architecture is None:
        writer.kv_data[0].pop("general.architecture", None)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[(formats or {}).get(name, "F32")]
        if values.dtype == np.uint8:
            data = values
        elif kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
            continue
        else:
            data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data.view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}*.gguf"))


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    kinds = gguf.GGUFValueType
    if isinstance(value, tuple):
        kind, value = value
    elif isinstance(value, bool):
        kind = kinds.BOOL
    elif isinstance(value, int):
        kind = kinds.UINT32
    elif isinstance(value, float):
        kind = kinds.FLOAT32
    elif isinstance(value, str):
        kind = kinds.STRING
    else:
        writer.add_array(key, value)
        return
    writer.add_key_value(key, value, kind)


def random_blocks(format_name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """uint8 [rows, row_bytes]: any bytes are a valid tensor of any format."""
    row_bytes = FORMATS[format_name].row_bytes(columns)
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), dtype=np.uint8)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def real_model(alias: str) -> Path:
    """The GGUF file of one of the real models; fetched on first use."""
    return resolve(alias)
