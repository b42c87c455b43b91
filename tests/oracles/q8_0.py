"""A Q8_0 copy of a GGUF file, made with the `gguf` package alone.

Every two-dimensional tensor (linear layers, embeddings) is dequantised and quantised to Q8_0;
everything else, the metadata included, is copied. The same source gives the same bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from headrace.formats.cache_dirs import cache_root

SKIPPED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")
TEST_DATA = cache_root() / "test-data"


def q8_0_copy(source: Path, directory: Path = TEST_DATA) -> Path:
    """Path of the copy, made on first use. Written under another name and renamed when whole."""
    target = directory / f"{source.stem}.to-q8_0.gguf"
    if target.exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        _write(gguf.GGUFReader(source), part)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _write(reader: gguf.GGUFReader, target: Path) -> None:
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name in SKIPPED:
            continue
        value = field.contents()
        if name == "general.file_type":
            value = int(gguf.LlamaFileType.MOSTLY_Q8_0)
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        kind = gguf.GGMLQuantizationType.Q8_0 if len(tensor.shape) == 2 else tensor.tensor_type
        shape = _data_shape(tensor, kind)
        dtype = np.uint8 if len(tensor.shape) == 2 else tensor.data.dtype
        writer.add_tensor_info(tensor.name, shape, dtype, int(np.prod(shape)) * dtype_size(dtype),
                               raw_dtype=kind)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        data = tensor.data
        if len(tensor.shape) == 2:
            data = quantize(dequantize(data, tensor.tensor_type), gguf.GGMLQuantizationType.Q8_0)
        writer.write_tensor_data(np.ascontiguousarray(data))
    writer.close()


def dtype_size(dtype: type) -> int:
    return np.dtype(dtype).itemsize


def _data_shape(tensor: gguf.ReaderTensor, kind: gguf.GGMLQuantizationType) -> tuple[int, ...]:
    """Shape of the stored array: bytes per row last for a quantised tensor."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    if len(shape) != 2:
        return shape
    return gguf.quant_shape_to_byte_shape(shape, kind)
