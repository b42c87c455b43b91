"""The header of one GGUF file: metadata and the table of tensors, every figure checked.

    magic "GGUF" · version u32 · tensor count u64 · key count u64
    key-values:  name · type u32 · value
    tensors:     name · axes u32 · sizes u64 (innermost first) · number format u32 · offset u64
    padding to general.alignment, then tensor data; offsets count from there

Works on bytes alone; files, splits and mapping are `gguf.py`'s. The whole header of a model with a
vocabulary of 262k reads in about 0.06 s, because strings are only skipped.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from headrace.formats.files import shorten
from headrace.formats.gguf_values import Cursor
from headrace.formats.tensors import READABLE_FORMATS, StoredTensor
from headrace.quant.formats import FORMATS_BY_GGML_TYPE

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_AXES = 4
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
# The fewest bytes a key-value (empty name, one-byte value) or a tensor (empty name) can take.
_MIN_KEY_VALUE_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8

#: Formats that exist in GGUF files but that Headrace does not compute with.
UNREAD_FORMATS: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One line of the tensor table. shape: row-major; offset: bytes from the start of the data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A parsed header. tensors: name → view into the buffer it was read from."""

    version: int
    metadata: dict[str, object]
    tensors: dict[str, StoredTensor]


def read_header(buffer: memoryview, source: str, *, header_only: bool = False) -> GGUFHeader:
    """Reads and checks the header of one GGUF file.

    buffer: the whole file, uint8. source: what to call it in messages. header_only: the tensors may
    be missing, and have no data then. Allocates in proportion to the header's real size only.
    Raises ModelFileError, never anything else.
    """
    cursor = Cursor(buffer, source)
    version = _read_version(cursor)
    num_tensors = cursor.u64("the number of tensors")
    num_keys = cursor.count("the number of metadata keys", _MIN_KEY_VALUE_BYTES)
    metadata = _read_metadata(cursor, num_keys)
    alignment = _alignment(cursor, metadata)
    if num_tensors * _MIN_TENSOR_BYTES > cursor.remaining:
        cursor.fail(
            f"the header promises {num_tensors} tensors, more than the {cursor.remaining} bytes "
            "that follow can hold; the file is truncated or damaged."
        )
    entries = _read_entries(cursor, num_tensors)
    data_start = -(-cursor.pos // alignment) * alignment
    end = None if header_only else cursor.end
    return GGUFHeader(version, metadata, _place(cursor, entries, data_start, alignment, end))


def _read_version(cursor: Cursor) -> int:
    if cursor.remaining < 8:
        cursor.truncated("the file's first 8 bytes")
    magic = bytes(cursor.buffer[:4])
    cursor.pos = 4
    version = cursor.u32("the version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if magic == MAGIC[::-1] or (magic == MAGIC and swapped in (1, *_VERSIONS)):
        cursor.fail(
            "this GGUF file is big-endian (byte-swapped), which Headrace does not read; "
            "convert it to little-endian."
        )
    if magic != MAGIC:
        cursor.fail(f"this is not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}.")
    if version not in _VERSIONS:
        cursor.fail(f"GGUF version {version} is not supported (Headrace reads versions 2 and 3).")
    return version


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for i in range(num_keys):
        key = cursor.name(f"the name of metadata key {i}")
        if key in metadata:
            cursor.fail(f"metadata key {shorten(key)} appears twice; the file is damaged.")
        what = f"metadata key {shorten(key)}"
        metadata[key] = cursor.value(cursor.u32(f"the type of {what}"), what)
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or not 0 < alignment <= _MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        cursor.fail(
            f"general.alignment is {shorten(str(alignment))}, but must be a power of two "
            f"of at most {_MAX_ALIGNMENT}."
        )
    return alignment


def _read_entries(cursor: Cursor, num_tensors: int) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    for i in range(num_tensors):
        name = cursor.name(f"the name of tensor {i}")
        what = f"tensor {shorten(name)}"
        if name in entries:
            cursor.fail(f"{what} appears twice; the file is damaged.")
        num_axes = cursor.u32(f"the number of axes of {what}")
        if num_axes > _MAX_AXES:
            cursor.fail(f"{what} has {num_axes} axes, more than the {_MAX_AXES} GGUF allows.")
        sizes = [cursor.u64(f"the shape of {what}") for _ in range(num_axes)]
        if 0 in sizes:
            cursor.fail(f"{what} has an axis of size 0 (shape {sizes[::-1]}).")
        ggml_type = cursor.u32(f"the number format of {what}")
        offset = cursor.u64(f"the offset of {what}")
        # GGUF lists the innermost axis first; a number without axes is a vector of one.
        entries[name] = TensorEntry(name, tuple(sizes[::-1]) or (1,), ggml_type, offset)
    return entries


def _place(
    cursor: Cursor,
    entries: dict[str, TensorEntry],
    data_start: int,
    alignment: int,
    end: int | None,
) -> dict[str, StoredTensor]:
    """Turns entries into views of the file's data, after checking that each lies inside it. end: of
    the file; None: without data."""
    tensors: dict[str, StoredTensor] = {}
    extents: list[tuple[int, int, str]] = []
    for entry in entries.values():
        what = f"tensor {shorten(entry.name)}"
        number_format = FORMATS_BY_GGML_TYPE.get(entry.ggml_type)
        if number_format is None:
            unread = UNREAD_FORMATS.get(entry.ggml_type)
            if unread is None:
                cursor.fail(
                    f"{what} has number format {entry.ggml_type}, which is unknown "
                    f"(Headrace reads {READABLE_FORMATS})."
                )
            tensors[entry.name] = StoredTensor(
                entry.name, entry.shape, None, unread, cursor.source, None
            )
            continue
        if entry.shape[-1] % number_format.block_size:
            cursor.fail(
                f"{what} has rows of {entry.shape[-1]} numbers, not a multiple of "
                f"{number_format.name}'s block of {number_format.block_size}."
            )
        if entry.offset % alignment:
            cursor.fail(
                f"{what} starts at offset {entry.offset}, not a multiple of the file's "
                f"alignment of {alignment}."
            )
        num_bytes = math.prod(entry.shape[:-1]) * number_format.row_bytes(entry.shape[-1])
        start = data_start + entry.offset
        if end is not None and start + num_bytes > end:
            cursor.fail(
                f"the file is truncated or damaged: {what} (shape {list(entry.shape)}, "
                f"{number_format.name}) needs bytes {start} to {start + num_bytes}, but the file "
                f"has {end}; download it again."
            )
        extents.append((start, start + num_bytes, entry.name))
        tensors[entry.name] = StoredTensor(
            entry.name, entry.shape, number_format, number_format.name, cursor.source,
            None if end is None else cursor.buffer[start : start + num_bytes],
        )  # fmt: skip
    overlap = first_overlap(extents)
    if overlap:
        cursor.fail(
            f"tensors {shorten(overlap[0])} and {shorten(overlap[1])} overlap; the file is damaged."
        )
    return tensors


def first_overlap(extents: list[tuple[int, int, str]]) -> tuple[str, str] | None:
    """Names of two tensors whose byte ranges [start, end) overlap, or None. Empty ranges do not."""
    ordered = sorted(extent for extent in extents if extent[0] < extent[1])
    for (_, end, name), (start, _, other) in itertools.pairwise(ordered):
        if start < end:
            return name, other
    return None
