"""Hugging Face directories: the safetensors package as writer and as oracle, and every fault."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
from safetensors import SafetensorError, TensorSpec, deserialize, serialize_file

from headrace.errors import ModelFileError
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.safetensors_header import read_safetensors_header
from headrace.quant.dequantize import dequantize
from headrace.quant.formats import BF16, F16
from headrace.quant.quantize import quantize

CONFIG = {"model_type": "llama", "hidden_size": 8, "rope_scaling": None}


def stored_bytes(values, dtype):
    """The bytes [n] of an array in one of safetensors' number formats."""
    if dtype in ("F16", "BF16"):
        return quantize(values, F16 if dtype == "F16" else BF16).data.ravel()
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def save(path, tensors):
    """tensors: name → (values, dtype); written by the safetensors package."""
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "BOOL": "bool"}
    data = {name: stored_bytes(*tensor) for name, tensor in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=names[dtype],
            shape=list(values.shape),
            data_ptr=data[name].ctypes.data,
            data_len=data[name].nbytes,
        )
        for name, (values, dtype) in tensors.items()
    }
    serialize_file(specs, path)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TENSORS = {
    "embed": (floats(6, 8, seed=1), "F32"),
    "norm": (floats(8, seed=2), "BF16"),
    "down": (floats(8, 5, seed=3), "F16"),
    "up": (floats(5, 8, seed=4), "BF16"),
}


def write_model(directory, shards=None, config=CONFIG):
    """shards: file name → tensor names; None for a single model.safetensors."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    for file, names in (shards or {"model.safetensors": list(TENSORS)}).items():
        save(directory / file, {name: TENSORS[name] for name in names})
    if shards:
        weight_map = {name: file for file, names in shards.items() for name in names}
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


SHARDS = {
    "model-00001-of-00002.safetensors": ["embed", "norm"],
    "model-00002-of-00002.safetensors": ["down", "up"],
}


@pytest.mark.parametrize("shards", [None, SHARDS], ids=["single", "sharded"])
def test_reads_what_safetensors_wrote(tmp_path, shards):
    checkpoint = open_checkpoint(write_model(tmp_path / "m", shards))
    assert checkpoint.kind == "hf"
    assert checkpoint.architecture == "llama"
    assert checkpoint.metadata == CONFIG
    assert set(checkpoint.tensors) == set(TENSORS)
    assert len(checkpoint.files) == (2 if shards else 1)
    for name, (values, dtype) in TENSORS.items():
        tensor = checkpoint.tensors[name]
        assert tensor.format.name == dtype
        assert tensor.shape == values.shape
        assert not tensor.data.flags.owndata
        assert tensor.data.tobytes() == stored_bytes(values, dtype).tobytes()
        if dtype == "F32":
            np.testing.assert_array_equal(dequantize(tensor), values)


def test_integer_tensors_may_be_there_but_not_be_used(tmp_path):
    directory = write_model(tmp_path)
    mask = np.tril(np.ones((4, 4), bool))
    tensors = {"mask": (mask, "BOOL"), "w": (floats(2, 2), "F32"), "n": (np.array(3), "I64")}
    save(directory / "model.safetensors", tensors)
    found = open_checkpoint(directory).tensors
    assert found["w"].shape == (2, 2)
    assert found.describe("n").shape == (1,)
    with pytest.raises(ModelFileError, match="'mask' is stored as BOOL"):
        found["mask"]


def test_empty_tensor_is_named(tmp_path):
    directory = write_model(tmp_path)
    save(directory / "model.safetensors", {"w": (floats(0, 4), "F32")})
    with pytest.raises(ModelFileError, match="'w' has no elements"):
        open_checkpoint(directory).tensors["w"]


def test_single_file_may_have_another_name(tmp_path):
    directory = write_model(tmp_path)
    (directory / "model.safetensors").rename(directory / "weights.safetensors")
    assert len(open_checkpoint(directory).tensors) == 4


def fails(path, *parts):
    with pytest.raises(ModelFileError) as error:
        open_checkpoint(path)
    sentence = str(error.value)
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence
    return sentence


def test_missing_shard_is_named(tmp_path):
    directory = write_model(tmp_path, SHARDS)
    (directory / "model-00002-of-00002.safetensors").unlink()
    fails(directory, "1 is missing", "model-00002-of-00002.safetensors")


def test_tensor_deleted_from_a_shard_is_named(tmp_path):
    directory = write_model(tmp_path, SHARDS)
    save(directory / list(SHARDS)[1], {"down": TENSORS["down"]})
    fails(directory, "tensor 'up' should be in model-00002-of-00002.safetensors")


def test_tensor_in_another_shard_than_the_index_says(tmp_path):
    directory = write_model(tmp_path, SHARDS)
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["up"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    fails(directory, "tensor 'up' should be in model-00001-of-00002.safetensors")


def test_tensor_in_two_shards(tmp_path):
    directory = write_model(tmp_path, SHARDS)
    names = ["down", "up", "embed"]
    save(directory / list(SHARDS)[1], {name: TENSORS[name] for name in names})
    fails(directory, "'embed' is already in")


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "a/b.safetensors", "", 3])
def test_index_cannot_point_outside_the_directory(tmp_path, file):
    directory = write_model(tmp_path, SHARDS)
    index = {"weight_map": {"embed": file}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    fails(directory, "'embed'", "not a plain file name")


def test_shards_without_index(tmp_path):
    directory = write_model(tmp_path, SHARDS)
    (directory / "model.safetensors.index.json").unlink()
    fails(directory, "2 safetensors file(s)", "model.safetensors.index.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "'model_type' is missing"),
        ('{"model_type": 3}', "'model_type' is missing"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "key 'model_type' appears twice"),
        (b'{"a": "\xff"}', "not valid JSON"),
    ],
)
def test_bad_config(tmp_path, content, message):
    directory = write_model(tmp_path)
    data = content if isinstance(content, bytes) else content.encode()
    (directory / "config.json").write_bytes(data)
    fails(directory, "config.json", message)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_bad_index(tmp_path, index):
    directory = write_model(tmp_path)
    (directory / "model.safetensors.index.json").write_text(index)
    fails(directory, "'weight_map' is missing or empty")


def test_pickles_are_refused(tmp_path):
    directory = write_model(tmp_path)
    (directory / "model.safetensors").unlink()
    fails(directory, "no *.safetensors file")
    (directory / "pytorch_model.bin").write_bytes(b"PK\3\4" + b"\0" * 60)
    fails(directory, "pickle (pytorch_model.bin)", "convert it to safetensors")
    fails(directory / "pytorch_model.bin", "never unpickles")


def test_paths_that_are_no_model(tmp_path):
    fails(tmp_path / "nowhere.gguf", "nowhere.gguf does not exist")
    fails(tmp_path, "directory without config.json")
    fails("\0", "cannot be read")
    fails("x" * 5000, "cannot be read")
    (tmp_path / "empty.gguf").touch()
    fails(tmp_path / "empty.gguf", "empty.gguf is empty")
    fails(tmp_path, "directory with GGUF files", "empty.gguf")
    os.mkfifo(tmp_path / "pipe")
    fails(tmp_path / "pipe", "not a regular file")
    for name, data, what in (
        ("pointer", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        ("page", b"<!DOCTYPE html><html>", "web page"),
        ("old", b"tjgg\1\0\0\0", "before GGUF"),
        ("config.json", b'{"model_type": "x"}', "a JSON file"),
        ("noise", b"hello", "not a model file"),
    ):
        (tmp_path / name).write_bytes(data)
        fails(tmp_path / name, name, what)
    (tmp_path / "config.json").unlink()
    directory = write_model(tmp_path / "m")
    fails(directory / "model.safetensors", "give its directory instead")
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    fails(directory, "config.json is a directory")


def packed(table, data=b""):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + data


def line(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD = {
    "short": (b"\1\0", "truncated"),
    "huge header": (b"\xff" * 8 + b"{}", "not a safetensors file"),
    "header past the end": (struct.pack("<Q", 500) + b"{}", "header needs 508 bytes"),
    "not JSON": (packed(b"hello"), "header is not JSON"),
    "broken JSON": (packed(b"{hello"), "not valid JSON"),
    "deep JSON": (packed(b'{"a":' + b"[" * 200_000), "nested too deeply"),
    "name twice": (packed(b'{"a":{},"a":{}}'), "key 'a' appears twice"),
    "no dtype": (packed({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"0000"), "not described"),
    "not an object": (packed({"a": 3}), "not described"),
    "negative axis": (packed({"a": line([-1], 0, 4)}, b"0000"), "no valid shape"),
    "bool axis": (packed({"a": line([True], 0, 4)}, b"0000"), "no valid shape"),
    "float axis": (packed({"a": line([1.0], 0, 4)}, b"0000"), "no valid shape"),
    "huge axis": (packed({"a": line([2**64], 0, 4)}, b"0000"), "no valid shape"),
    "absurd shape": (packed({"a": line([2**62] * 3, 0, 4)}, b"0000"), "has 4 bytes, but shape"),
    "100 axes": (packed({"a": line([1] * 100, 0, 4)}, b"0000"), "no valid shape"),
    "backwards": (packed({"a": line([1], 4, 0)}, b"0000"), "no valid offsets"),
    "three offsets": (
        packed({"a": {**line([1], 0, 4), "data_offsets": [0, 4, 8]}}),
        "no valid off",
    ),
    "past the end": (packed({"a": line([2], 0, 8)}, b"0000"), "'a' ends at byte"),
    "wrong size": (packed({"a": line([3], 0, 4)}, b"0000"), "'a' has 4 bytes"),
    "overlap": (packed({"a": line([2], 0, 8), "b": line([2], 4, 12)}, b"0" * 12), "'b' overlaps"),
    "gap": (packed({"a": line([1], 0, 4), "b": line([1], 8, 12)}, b"0" * 12), "gap before it"),
    "trailing bytes": (packed({"a": line([1], 0, 4)}, b"0" * 9), "its tensors end at"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_safetensors(tmp_path, case):
    """The safetensors package refuses each of these too."""
    data, message = BAD[case]
    directory = write_model(tmp_path / "m")
    (directory / "model.safetensors").write_bytes(data)
    fails(directory, "model.safetensors", message)
    if case != "100 axes":
        with pytest.raises(SafetensorError):
            deserialize(data)


def test_every_truncation_is_noticed(tmp_path):
    data = (write_model(tmp_path / "m") / "model.safetensors").read_bytes()
    read_safetensors_header(memoryview(data), "whole")
    for size in range(len(data)):
        with pytest.raises(ModelFileError):
            read_safetensors_header(memoryview(data[:size]), "cut")
