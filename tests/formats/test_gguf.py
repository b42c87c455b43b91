"""The GGUF reader against the `gguf` package: same keys, same values, same tensor bytes."""

from __future__ import annotations

import itertools
import tracemalloc

import gguf
import numpy as np
import pytest
from synthetic_gguf import floats, random_blocks, real_model, write_gguf

from headrace.errors import ModelFileError
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.gguf_values import StringArray
from headrace.quant.dequantize import dequantize, dequantize_rows, dequantized_slices
from headrace.quant.formats import FORMATS

TYPES = gguf.GGUFValueType
EVERY_TYPE = {
    "t.u8": (TYPES.UINT8, 255),
    "t.i8": (TYPES.INT8, -128),
    "t.u16": (TYPES.UINT16, 65535),
    "t.i16": (TYPES.INT16, -32768),
    "t.u32": (TYPES.UINT32, 2**32 - 1),
    "t.i32": (TYPES.INT32, -(2**31)),
    "t.u64": (TYPES.UINT64, 2**64 - 1),
    "t.i64": (TYPES.INT64, -(2**63)),
    "t.f32": (TYPES.FLOAT32, 1e-5),
    "t.f64": (TYPES.FLOAT64, 1e-300),
    "t.true": True,
    "t.false": False,
    "t.text": "grüße 🙂",
    "t.empty": "",
    "a.ints": [1, -2, 3],
    "a.floats": [0.5, -1.25],
    "a.bools": [True, False, True],
    "a.texts": ["", "a", "Ġhello", "日本", "🙂"],
}


def reader_value(field):
    """A field of the outside reader as plain Python."""
    if field.types[0] == TYPES.ARRAY:
        parts = [field.parts[i] for i in field.data]
        if field.types[-1] == TYPES.STRING:
            return [bytes(part) for part in parts]
        return [part[0] for part in parts]
    part = field.parts[field.data[0]]
    return bytes(part) if field.types[0] == TYPES.STRING else part[0]


def assert_same_as_oracle(path):
    """Every key and every tensor byte of a file as the outside reader sees them."""
    checkpoint = open_checkpoint(path)
    oracle = gguf.GGUFReader(path)
    keys = {key for key in oracle.fields if not key.startswith("GGUF.")}
    assert set(checkpoint.metadata) == keys
    for key in keys:
        ours, theirs = checkpoint.metadata[key], reader_value(oracle.fields[key])
        if isinstance(ours, StringArray):
            assert list(ours.raw_items()) == theirs, key
        elif isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs, err_msg=key)
        elif isinstance(ours, str):
            assert ours.encode() == theirs, key
        else:
            assert ours == theirs, key
    assert list(checkpoint.tensors) == [tensor.name for tensor in oracle.tensors]
    for theirs in oracle.tensors:
        ours = checkpoint.tensors[theirs.name]
        assert ours.format.name == theirs.tensor_type.name
        assert ours.shape == tuple(int(size) for size in theirs.shape[::-1])
        assert ours.data.shape == (ours.rows, ours.format.row_bytes(ours.columns))
        np.testing.assert_array_equal(ours.data.ravel(), theirs.data.view(np.uint8).ravel())
    return checkpoint


@pytest.fixture
def every_format(tmp_path):
    """One tensor of every number format, each with an odd number of rows."""
    tensors = {name: random_blocks(name, 3, 512) for name in FORMATS}
    tensors |= {"vector": floats(40), "cube": floats(2, 3, 32), "matrix": floats(5, 7)}
    (path,) = write_gguf(
        tmp_path / "every.gguf", tensors, EVERY_TYPE, formats={name: name for name in FORMATS}
    )
    return path


def test_every_type_and_format(every_format):
    metadata = assert_same_as_oracle(every_format).metadata
    assert metadata["t.u64"] == 2**64 - 1
    assert metadata["t.true"] is True
    assert metadata["t.text"] == "grüße 🙂"
    assert type(metadata["t.f32"]) is float
    assert metadata["t.f32"] == float(np.float32(1e-5))
    assert metadata["a.bools"].dtype == np.bool_
    assert list(metadata["a.texts"]) == EVERY_TYPE["a.texts"]


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignment(tmp_path, alignment):
    tensors = {f"t{i}": floats(1, 3 + i) for i in range(4)}
    (path,) = write_gguf(tmp_path / "aligned.gguf", tensors, alignment=alignment)
    checkpoint = assert_same_as_oracle(path)
    for name, values in tensors.items():
        np.testing.assert_array_equal(dequantize(checkpoint.tensors[name]), values)


def test_version_2_reads_like_version_3(every_format):
    data = bytearray(every_format.read_bytes())
    data[4] = 2
    every_format.write_bytes(data)
    assert_same_as_oracle(every_format)


def test_tensors_are_read_only_views_of_the_file(every_format):
    tracemalloc.start()
    checkpoint = open_checkpoint(every_format)
    tensor = checkpoint.tensors["F32"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    assert not tensor.data.flags.writeable
    assert not tensor.data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tensor.data[0, 0] = 1
    assert not checkpoint.metadata["a.ints"].flags.writeable


def test_string_array_is_lazy_and_keeps_invalid_bytes(tmp_path):
    pieces = [b"plain", b"\xff\xfe", b"", "ö".encode(), b"\xc3"]
    (path,) = write_gguf(tmp_path / "tokens.gguf", {}, {"tokens": pieces})
    tokens = open_checkpoint(path).metadata["tokens"]
    assert isinstance(tokens, StringArray)
    assert len(tokens) == 5
    assert list(tokens.raw_items()) == pieces
    assert [tokens.raw(i) for i in range(-5, 0)] == pieces
    assert tokens[0] == "plain"
    assert tokens[1] == "\ufffd\ufffd"
    assert tokens[-2] == "ö"
    assert tokens[1:4] == ["\ufffd\ufffd", "", "ö"]
    assert list(tokens) == [tokens[i] for i in range(5)]
    assert "ö" in tokens
    for index in (5, -6):
        with pytest.raises(IndexError):
            tokens[index]


def test_extra_and_absent_tensors_are_the_loaders_business(tmp_path):
    """A file with rope_freqs.weight and without output.weight opens and shows what it has."""
    tensors = {"token_embd.weight": floats(8, 32), "rope_freqs.weight": floats(32)}
    (path,) = write_gguf(tmp_path / "tied.gguf", tensors)
    found = open_checkpoint(path).tensors
    assert "rope_freqs.weight" in found
    assert "output.weight" not in found
    with pytest.raises(KeyError):
        found["output.weight"]


@pytest.mark.parametrize("padding", [1, 31, 4096])
def test_padding_at_the_end_is_accepted(every_format, padding):
    with every_format.open("ab") as file:
        file.write(b"\0" * padding)
    assert_same_as_oracle(every_format)


def test_known_format_that_we_do_not_read_fails_only_when_needed(tmp_path):
    tensors = {"iq": np.zeros((2, 66), np.uint8), "good": floats(2, 32)}
    (path,) = write_gguf(tmp_path / "iq.gguf", tensors, formats={"iq": "IQ2_XXS"})
    found = open_checkpoint(path).tensors
    assert list(found) == ["iq", "good"]
    assert found.describe("iq").format_name == "IQ2_XXS"
    assert found["good"].shape == (2, 32)
    with pytest.raises(ModelFileError, match=r"'iq' is stored as IQ2_XXS.*it reads F32, F16"):
        found["iq"]


def test_vocabulary_without_tensors(tmp_path):
    (path,) = write_gguf(tmp_path / "vocab.gguf", {}, {"tokenizer.ggml.tokens": ["a", "b"]})
    assert len(open_checkpoint(path).tensors) == 0


REAL = [
    pytest.param("smollm2-135m", marks=pytest.mark.models),
    pytest.param("gemma3-270m", marks=pytest.mark.models),
    pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.large),
    pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.large),
]


@pytest.mark.parametrize("alias", REAL)
def test_real_model_matches_oracle(alias):
    checkpoint = assert_same_as_oracle(real_model(alias))
    for name in checkpoint.tensors:
        tensor = checkpoint.tensors[name]
        rows = np.unique(np.linspace(0, tensor.rows - 1, 64).astype(int))
        kind = gguf.GGMLQuantizationType(tensor.format.ggml_type)
        theirs = gguf.quants.dequantize(tensor.data[rows], kind)
        ours = dequantize_rows(tensor, rows)
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32), err_msg=name)


VOCABULARIES = (
    "aquila", "baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon",
    "gemma-4", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt", "nomic-bert-moe", "phi-3",
    "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
QUICK = {"bert-bge", "llama-spm", "phi-3"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.large) for n in VOCABULARIES],
)
def test_real_vocabulary_matches_oracle(name, suite):
    checkpoint = assert_same_as_oracle(suite / f"ggml-vocab-{name}.gguf")
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) > 20_000
    assert len(checkpoint.tensors) == 0


@pytest.mark.models
def test_slices_of_a_vocabulary_need_little_memory():
    tensor = open_checkpoint(real_model("gemma3-270m")).tensors["token_embd.weight"]
    assert tensor.rows == 262144
    tracemalloc.start()
    parts = itertools.islice(dequantized_slices(tensor, 1024), 4)
    sums = [part.sum() for _, part in parts]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(sums) == 4
    assert peak < 32 << 20
