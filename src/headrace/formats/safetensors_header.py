"""The header of one safetensors file: a JSON table of tensors, every figure checked.

    header length u64 · JSON {name: {"dtype", "shape", "data_offsets": [begin, end)}} · data

Works on bytes alone. As the format demands, the tensors must cover the data exactly: no overlap,
no gap, nothing after the end.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn

from headrace.errors import ModelFileError
from headrace.formats.files import shorten
from headrace.formats.tensors import StoredTensor
from headrace.quant.formats import BF16, F16, F32, NumberFormat

#: The format's own limit on the JSON, and ours on the number of axes.
MAX_HEADER_BYTES = 100_000_000
_MAX_AXES = 16
_READ: dict[str, NumberFormat] = {f.name: f for f in (F32, F16, BF16)}
#: Bits per element of the types that exist but that Headrace does not compute with.
_UNREAD_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


def read_safetensors_header(buffer: memoryview, source: str) -> dict[str, StoredTensor]:
    """Tensor name → StoredTensor viewing `buffer`, in the order of the data.

    buffer: the whole file, uint8. source: what to call it in messages. Raises ModelFileError.
    """
    header, data_start = _read_json(buffer, source)
    notes = header.get("__metadata__") or {}
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        _fail(source, "'__metadata__' does not map names to texts.")
    tensors = [
        (begin, end, StoredTensor(name, shape, number_format, dtype, source, data))
        for name, begin, end, dtype, shape, number_format, data in (
            _entry(name, entry, buffer, data_start, source)
            for name, entry in header.items()
            if name != "__metadata__"
        )
    ]
    tensors.sort(key=lambda item: (item[0], item[1]))
    covered = 0
    for begin, end, tensor in tensors:
        if begin != covered:
            kind = "overlaps the tensor before it" if begin < covered else "leaves a gap before it"
            _fail(source, f"tensor {shorten(tensor.name)} {kind}; the file is damaged.")
        covered = end
    if data_start + covered != len(buffer):
        _fail(
            source,
            f"its tensors end at byte {data_start + covered}, but the file has {len(buffer)}; "
            "the file is damaged.",
        )
    return {tensor.name: tensor for _, _, tensor in tensors}


def parse_json_object(data: bytes, what: str) -> dict[str, object]:
    """A JSON object whose keys are unique on every level. Raises ModelFileError naming `what`."""
    try:
        value = json.loads(data, object_pairs_hook=_unique_object)
    except RecursionError:
        raise ModelFileError(f"{what} is nested too deeply.") from None
    except ValueError as error:  # invalid UTF-8, JSON syntax, absurd numbers, a key twice
        raise ModelFileError(f"{what} is not valid JSON: {shorten(str(error), 120)}.") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{what} is not a JSON object.")
    return value


def _unique_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {shorten(key)} appears twice")
            seen.add(key)
    return result


def _fail(source: str, sentence: str) -> NoReturn:
    raise ModelFileError(f"{source}: {sentence}")


def _read_json(buffer: memoryview, source: str) -> tuple[dict[str, object], int]:
    """The header's JSON and where the data start."""
    if len(buffer) < 8:
        _fail(source, f"the file is truncated: {len(buffer)} bytes; download it again.")
    length = int.from_bytes(buffer[:8], "little")
    if length > MAX_HEADER_BYTES:
        _fail(source, f"this is not a safetensors file (a header of {length} bytes).")
    if 8 + length > len(buffer):
        _fail(
            source,
            f"the file is truncated or damaged: its header needs {8 + length} bytes, but the file "
            f"has {len(buffer)}; download it again.",
        )
    data = bytes(buffer[8 : 8 + length])
    if not data.startswith(b"{"):
        _fail(source, "this is not a safetensors file (its header is not JSON).")
    return parse_json_object(data, f"{source}: the header"), 8 + length


def _entry(
    name: str, entry: object, buffer: memoryview, data_start: int, source: str
) -> tuple[str, int, int, str, tuple[int, ...], NumberFormat | None, memoryview]:
    """One checked line of the table: its byte range inside the data, and what lies there."""
    what = f"tensor {shorten(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        _fail(source, f"{what} is not described by dtype, shape and data_offsets.")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or (dtype not in _READ and dtype not in _UNREAD_BITS):
        _fail(
            source,
            f"{what} has number format {shorten(str(dtype))}, which is unknown "
            f"(Headrace reads {', '.join(_READ)} from safetensors).",
        )
    shape = _counts(entry["shape"])
    if shape is None or len(shape) > _MAX_AXES:
        _fail(source, f"{what} has no valid shape ({shorten(str(entry['shape']))}).")
    offsets = _counts(entry["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        _fail(source, f"{what} has no valid offsets ({shorten(str(entry['data_offsets']))}).")
    begin, end = offsets
    if data_start + end > len(buffer):
        _fail(
            source,
            f"the file is truncated or damaged: {what} ends at byte {data_start + end}, but the "
            f"file has {len(buffer)}; download it again.",
        )
    number_format = _READ.get(dtype)
    item_bits = 8 * number_format.block_bytes if number_format else _UNREAD_BITS[dtype]
    if 8 * (end - begin) != math.prod(shape) * item_bits:
        _fail(
            source,
            f"{what} has {end - begin} bytes, but shape {list(shape)} in {dtype} takes "
            f"{math.prod(shape) * item_bits / 8:.15g}.",
        )
    data = buffer[data_start + begin : data_start + end]
    return name, begin, end, dtype, shape or (1,), number_format, data


def _counts(value: object) -> tuple[int, ...] | None:
    """A JSON list of non-negative integers below 2⁶³ (bools excluded), or None."""
    if not isinstance(value, list):
        return None
    if not all(type(item) is int and 0 <= item < 1 << 63 for item in value):
        return None
    return tuple(value)
