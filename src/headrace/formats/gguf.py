"""Opening GGUF models: one file, or a set of split files found from any one of them.

A split set is named `NAME-00001-of-0000M.gguf` … and numbered inside by `split.no`, `split.count`
and `split.tensors.count`. The first file holds the metadata; tensors are spread over all.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import ModelFileError
from headrace.formats.files import map_file, shorten
from headrace.formats.gguf_header import GGUFHeader, read_header
from headrace.formats.tensors import FileCheckpoint, StoredTensor, TensorTable

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_SPLITS = 9999


def open_gguf(path: Path, *, header_only: bool = False) -> FileCheckpoint:
    """Opens a GGUF file, or the whole set when it is one file of a split set.

    Reads headers only; tensor bytes stay in the mapped files. header_only: files may end after
    their headers; tensors can then be described, not loaded. Raises ModelFileError.
    """
    header = _read(path, header_only)
    num_splits = _split_figure(header, "split.count", path)
    if num_splits is None or num_splits <= 1:
        return _checkpoint(path, (path,), header.metadata, header.tensors)
    paths = _split_paths(path, num_splits)
    headers = [header if each.name == path.name else _read(each, header_only) for each in paths]
    _check_numbers(paths, headers, num_splits)
    tensors: dict[str, StoredTensor] = {}
    for each, part in zip(paths, headers, strict=True):
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelFileError(
                    f"{each}: tensor {shorten(name)} is already in {tensors[name].file}; "
                    "the split files do not belong together."
                )
            tensors[name] = tensor
    for each, part in zip(paths, headers, strict=True):
        promised = _split_figure(part, "split.tensors.count", each)
        if promised is not None and promised != len(tensors):
            raise ModelFileError(
                f"{each}: split.tensors.count is {promised}, but the {num_splits} split files "
                f"hold {len(tensors)} tensors; download them again."
            )
    return _checkpoint(path, paths, headers[0].metadata, tensors)


def _read(path: Path, header_only: bool) -> GGUFHeader:
    return read_header(map_file(path), str(path), header_only=header_only)


def _checkpoint(
    path: Path,
    files: tuple[Path, ...],
    metadata: dict[str, object],
    tensors: dict[str, StoredTensor],
) -> FileCheckpoint:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{files[0]}: metadata key 'general.architecture' is missing.")
    return FileCheckpoint("gguf", architecture, metadata, TensorTable(tensors), str(path), files)


def _split_figure(header: GGUFHeader, key: str, path: Path) -> int | None:
    value = header.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ModelFileError(f"{path}: {key} is {shorten(str(value))}, but must be a count.")
    return value


def _split_paths(path: Path, num_splits: int) -> tuple[Path, ...]:
    """All files of the set that `path` belongs to, in order. Raises if any is missing."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        raise ModelFileError(
            f"{path} is one of {num_splits} split files, but its name does not end in "
            f"-00001-of-{num_splits:05d}.gguf (or its own number), so the others cannot be found; "
            "give the files their original names."
        )
    named_count = int(match["count"])
    if named_count != num_splits:
        raise ModelFileError(
            f"{path}: the name says {named_count} split files, but split.count is {num_splits}; "
            "give the files their original names."
        )
    if num_splits > _MAX_SPLITS:
        raise ModelFileError(f"{path}: {num_splits} split files are more than {_MAX_SPLITS}.")

    def numbered(number: int) -> Path:
        return path.with_name(f"{match['stem']}-{number:05d}-of-{num_splits:05d}.gguf")

    # Names count from 1; a set that counts from 0 is recognised by its first file.
    first = 0 if int(match["number"]) == 0 or numbered(0).exists() else 1
    paths = tuple(numbered(first + i) for i in range(num_splits))
    if path not in paths:
        raise ModelFileError(
            f"{path}: number {match['number']} is outside its set of {num_splits}."
        )
    missing = [each.name for each in paths if not each.exists()]
    if missing:
        shown = ", ".join(missing[:4]) + (" …" if len(missing) > 4 else "")
        raise ModelFileError(
            f"{path} is one of {num_splits} split files, and of these {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing in {path.parent}: {shown}."
        )
    return paths


def _check_numbers(paths: tuple[Path, ...], headers: list[GGUFHeader], num_splits: int) -> None:
    """Each file must carry its own place in the set, counted from 0, or throughout from 1."""
    numbers = []
    for path, header in zip(paths, headers, strict=True):
        count = _split_figure(header, "split.count", path)
        if count != num_splits:
            raise ModelFileError(
                f"{path}: split.count is {count}, but {num_splits} in the rest of the set; "
                "the split files do not belong together."
            )
        numbers.append(_split_figure(header, "split.no", path))
    if numbers == list(range(1, num_splits + 1)):
        return
    for place, (path, number) in enumerate(zip(paths, numbers, strict=True)):
        if number != place:
            raise ModelFileError(
                f"{path}: split.no is {number}, but by its name it is file {place} of the set "
                "(counted from 0); the split files were renamed or mixed up."
            )
