"""Opening a Hugging Face directory: config.json with one or several safetensors files.

Pickled weights (pytorch_model.bin and kin) are refused: reading a pickle can run any code.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.errors import ModelFileError
from headrace.formats.files import map_file, read_small_file, shorten
from headrace.formats.safetensors_header import parse_json_object, read_safetensors_header
from headrace.formats.tensors import FileCheckpoint, StoredTensor, TensorTable

_MAX_CONFIG_BYTES = 16 << 20
_MAX_INDEX_BYTES = 64 << 20
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_huggingface(directory: Path) -> FileCheckpoint:
    """Opens a directory with config.json and safetensors weights.

    Reads configuration and headers only; tensors are views of the mapped files. metadata is
    config.json as it stands. Raises ModelFileError.
    """
    config = directory / "config.json"
    if not config.exists():
        raise ModelFileError(_no_config(directory))
    metadata = parse_json_object(read_small_file(config, _MAX_CONFIG_BYTES), str(config))
    architecture = metadata.get("model_type")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{config}: 'model_type' is missing, so the architecture is unknown.")
    if (directory / _INDEX).exists():
        files, tensors = _open_sharded(directory)
    else:
        files = (_single_file(directory),)
        tensors = read_safetensors_header(map_file(files[0]), str(files[0]))
    return FileCheckpoint("hf", architecture, metadata, TensorTable(tensors), str(directory), files)


def _open_sharded(directory: Path) -> tuple[tuple[Path, ...], dict[str, StoredTensor]]:
    """All tensors of all files that the index names, each found where the index says it is."""
    index = directory / _INDEX
    weight_map = parse_json_object(read_small_file(index, _MAX_INDEX_BYTES), str(index)).get(
        "weight_map"
    )
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: 'weight_map' is missing or empty.")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise ModelFileError(
                f"{index}: tensor {shorten(name)} is said to lie in {shorten(str(file))}, "
                "which is not a plain file name."
            )
    files = tuple(directory / file for file in sorted(set(weight_map.values())))
    missing = [file.name for file in files if not file.exists()]
    if missing:
        shown = ", ".join(missing[:4]) + (" …" if len(missing) > 4 else "")
        raise ModelFileError(
            f"{index} names {len(files)} files, and of these {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing in {directory}: {shown}."
        )
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_safetensors_header(map_file(file), str(file)).items():
            if name in tensors:
                raise ModelFileError(
                    f"{file}: tensor {shorten(name)} is already in {tensors[name].file}; "
                    "the files do not belong together."
                )
            tensors[name] = tensor
    for name, file in weight_map.items():
        found = tensors.get(name)
        if found is None or Path(found.file).name != file:
            raise ModelFileError(
                f"{index}: tensor {shorten(name)} should be in {file}, but is not there; "
                "download the files again."
            )
    return files, tensors


def _single_file(directory: Path) -> Path:
    names = _names(directory)
    weights = [name for name in names if name.endswith(".safetensors")]
    if _SINGLE in weights:
        return directory / _SINGLE
    if len(weights) == 1 and "-of-" not in weights[0]:
        return directory / weights[0]
    if weights:
        raise ModelFileError(
            f"{directory} has {len(weights)} safetensors file(s), but neither {_SINGLE} nor the "
            f"index {_INDEX} that says what lies where; download it again."
        )
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        raise ModelFileError(
            f"{directory} has its weights as a Python pickle ({pickles[0]}), which can run code "
            "when read and is refused; convert it to safetensors."
        )
    raise ModelFileError(f"{directory} has a config.json but no *.safetensors file.")


def _no_config(directory: Path) -> str:
    gguf = [name for name in _names(directory) if name.endswith(".gguf")]
    if gguf:
        return f"{directory} is a directory with GGUF files; give one's path ({gguf[0]})."
    return (
        f"{directory} is a directory without config.json; give a GGUF file, or a directory with "
        "config.json and *.safetensors."
    )


def _names(directory: Path) -> list[str]:
    try:
        entries: Iterable[Path] = directory.iterdir()
        return sorted(entry.name for entry in entries)
    except OSError as error:
        raise ModelFileError(f"{directory} cannot be read: {error.strerror}.") from None
