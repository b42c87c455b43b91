"""Damaged and foreign GGUF files: each ends in one sentence that names the file and the thing."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from synthetic_gguf import floats, write_gguf

from headrace.errors import ModelFileError
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.gguf_header import read_header


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return u64(len(data)) + data


def key(name, type_id, value):
    return text(name) + u32(type_id) + value


def tensor(name, shape, ggml_type=0, offset=0):
    """shape row-major, as everywhere in Headrace."""
    sizes = b"".join(u64(size) for size in reversed(shape))
    return text(name) + u32(len(shape)) + sizes + u32(ggml_type) + u64(offset)


ARCHITECTURE = key("general.architecture", 8, text("llama"))


def header(keys=(), tensors=(), *, num_keys=None, num_tensors=None, magic=b"GGUF", version=3):
    counts = u64(len(tensors) if num_tensors is None else num_tensors)
    counts += u64(1 + len(keys) if num_keys is None else num_keys)
    return magic + u32(version) + counts + ARCHITECTURE + b"".join(keys) + b"".join(tensors)


def with_data(head, num_bytes):
    return head + b"\0" * (-len(head) % 32 + num_bytes)


def test_the_builder_makes_valid_files():
    data = with_data(header([key("x", 4, u32(7))], [tensor("t", (2, 4))]), 32)
    parsed = read_header(memoryview(data), "f")
    assert parsed.metadata == {"general.architecture": "llama", "x": 7}
    assert parsed.tensors["t"].host().shape == (2, 4)


BAD = {
    "wrong magic": (header(magic=b"GGXX"), "is not a model file (it starts with b'GGXX"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "version 4": (header(version=4), "version 4 is not supported"),
    "swapped version": (b"GGUF" + struct.pack(">I", 3) + b"\0" * 16, "big-endian"),
    "swapped magic": (b"FUGG" + struct.pack(">I", 3) + b"\0" * 16, "big-endian"),
    "three bytes": (b"GGU", "is not a model file"),
    "only magic": (b"GGUF" + u32(3), "inside the number of tensors"),
    "huge key count": (header(num_keys=2**64 - 1), "metadata keys is 18446744073709551615"),
    "one key too many": (header(num_keys=3), "truncated"),
    "huge tensor count": (header(num_tensors=2**40), "promises 1099511627776 tensors"),
    "key twice": (header([key("x", 4, u32(1))] * 2), "key 'x' appears twice"),
    "key not UTF-8": (header([key(b"\xff\xfe", 4, u32(1))]), "not valid UTF-8"),
    "huge key": (header([u64(2**63) + b"x"]), "bytes long"),
    "huge string": (header([key("x", 8, u64(2**62))]), "key 'x' is 4611686018427387904 bytes"),
    "string past the end": (header([key("x", 8, u64(1000) + b"abc")]), "inside metadata key 'x'"),
    "value type 13": (header([key("x", 13, u32(1))]), "value type 13"),
    "array of arrays": (header([key("x", 9, u32(9) + u64(1))]), "array of arrays"),
    "array of type 77": (header([key("x", 9, u32(77) + u64(1))]), "items of type 77"),
    "huge number array": (header([key("x", 9, u32(4) + u64(2**62))]), "length of metadata key 'x'"),
    "huge string array": (header([key("x", 9, u32(8) + u64(2**60))]), "length of metadata key 'x'"),
    "string array cut": (
        header([key("x", 9, u32(8) + u64(2) + text("a") + u64(500) + b"bcdefghi")]),
        "inside metadata key 'x'",
    ),
    "bool 7": (header([key("x", 7, b"\7")]), "bool with value 7"),
    "bools 7": (header([key("x", 9, u32(7) + u64(2) + b"\1\7")]), "array of bools"),
    "alignment 0": (header([key("general.alignment", 4, u32(0))]), "alignment is '0'"),
    "alignment 33": (header([key("general.alignment", 4, u32(33))]), "alignment is '33'"),
    "alignment 2³¹": (header([key("general.alignment", 4, u32(1 << 31))]), "power of two"),
    "alignment text": (header([key("general.alignment", 8, text("a"))]), "power of two"),
    "tensor twice": (with_data(header((), [tensor("t", (8,))] * 2), 64), "'t' appears twice"),
    "five axes": (with_data(header((), [tensor("t", (1,) * 5)]), 64), "'t' has 5 axes"),
    "absurd axes": (
        with_data(header((), [text("t") + u32(2**31) + b"x" * 64]), 64),
        "'t' has 2147483648 axes",
    ),
    "axis of 0": (with_data(header((), [tensor("t", (0, 4))]), 64), "axis of size 0"),
    "absurd shape": (
        with_data(header((), [tensor("t", (2**62, 2**62, 2**62))]), 64),
        "tensor 't' (shape [4611686018427387904, 4611686018427387904, 4611686018427387904], F32)",
    ),
    "unknown format": (with_data(header((), [tensor("t", (8,), 999)]), 64), "number format 999"),
    "partial block": (with_data(header((), [tensor("t", (33,), 8)]), 64), "not a multiple of Q8_0"),
    "misaligned": (with_data(header((), [tensor("t", (8,), 0, 4)]), 64), "alignment of 32"),
    "huge offset": (with_data(header((), [tensor("t", (8,), 0, 2**63)]), 64), "truncated"),
    "one byte short": (with_data(header((), [tensor("t", (8,))]), 31), "needs bytes 128 to 160"),
    "no data": (header((), [tensor("t", (8,))]), "truncated"),
    "overlap": (
        with_data(header((), [tensor("t", (64,)), tensor("u", (8,), 0, 32)]), 512),
        "'t' and 'u' overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_header(tmp_path, case):
    data, message = BAD[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as error:
        open_checkpoint(path)
    sentence = str(error.value)
    assert "bad.gguf" in sentence
    assert "\n" not in sentence
    assert len(sentence) < 700
    assert message in sentence


def test_every_truncation_is_noticed(tmp_path):
    (path,) = write_gguf(
        tmp_path / "whole.gguf",
        {"a": floats(3, 32), "b": floats(32)},
        {"tokens": ["x", "yy", "zzz"], "ids": [1, 2, 3], "name": "model"},
    )
    data = path.read_bytes()
    read_header(memoryview(data), "whole")
    for size in range(len(data)):
        with pytest.raises(ModelFileError):
            read_header(memoryview(data[:size]), "cut")


def test_big_endian_file_is_named(tmp_path):
    (path,) = write_gguf(tmp_path / "big.gguf", {"t": floats(2, 32)}, endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(ModelFileError, match=r"big\.gguf: .*big-endian \(byte-swapped\)"):
        open_checkpoint(path)


def test_architecture_is_required(tmp_path):
    (path,) = write_gguf(tmp_path / "anonymous.gguf", {"t": floats(1, 32)}, architecture=None)
    with pytest.raises(ModelFileError, match=r"'general\.architecture' is missing"):
        open_checkpoint(path)


def test_hostile_names_do_not_flood_the_message():
    data = header([key("x\n" * 20000, 13, u32(0))])
    with pytest.raises(ModelFileError) as error:
        read_header(memoryview(data), "f")
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def split_model(tmp_path, num_tensors=7, per_file=3):
    tensors = {f"t{i}": floats(2, 32, seed=i) for i in range(num_tensors)}
    files = write_gguf(tmp_path / "m.gguf", tensors, {"answer": 42}, split_max_tensors=per_file)
    assert [file.name for file in files] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return files, tensors


def patched(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("entry", [0, 1, 2])
def test_any_split_file_opens_the_set(tmp_path, entry):
    files, tensors = split_model(tmp_path)
    checkpoint = open_checkpoint(files[entry])
    assert checkpoint.metadata["answer"] == 42
    assert checkpoint.architecture == "llama"
    assert checkpoint.files == tuple(files)
    assert list(checkpoint.tensors) == list(tensors)
    for name, values in tensors.items():
        found = checkpoint.tensors[name]
        np.testing.assert_array_equal(found.data.view(np.float32), values)


def test_split_set_from_the_working_directory(tmp_path, monkeypatch):
    files, _ = split_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(open_checkpoint(files[1].name).tensors) == 7


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_missing_split_file_is_named(tmp_path, gone):
    files, _ = split_model(tmp_path)
    files[gone].unlink()
    with pytest.raises(ModelFileError, match=rf"1 is missing in .*: {files[gone].name}"):
        open_checkpoint(files[(gone + 1) % 3])


def test_split_set_numbered_from_zero_in_names_or_from_one_inside(tmp_path):
    files, tensors = split_model(tmp_path)
    for i, file in enumerate(files):
        file.rename(tmp_path / f"m-0000{i}-of-00003.gguf")
    assert list(open_checkpoint(tmp_path / "m-00001-of-00003.gguf").tensors) == list(tensors)
    no = b"split.no" + u32(2)
    for i in range(3):
        patched(
            tmp_path / f"m-0000{i}-of-00003.gguf",
            no + struct.pack("<H", i),
            no + struct.pack("<H", i + 1),
        )
    assert list(open_checkpoint(tmp_path / "m-00002-of-00003.gguf").tensors) == list(tensors)


def test_swapped_split_files_are_noticed(tmp_path):
    files, _ = split_model(tmp_path)
    spare = tmp_path / "spare"
    files[1].rename(spare)
    files[2].rename(files[1])
    spare.rename(files[2])
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: split\.no is 2.*mixed up"):
        open_checkpoint(files[0])


def test_wrong_split_counts_are_named(tmp_path):
    files, _ = split_model(tmp_path)
    count = b"split.count" + u32(2)
    patched(files[1], count + struct.pack("<H", 3), count + struct.pack("<H", 4))
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: split\.count is 4, but 3"):
        open_checkpoint(files[0])
    with pytest.raises(ModelFileError, match=r"the name says 3 split files, but split\.count is 4"):
        open_checkpoint(files[1])


def test_wrong_number_of_split_tensors_is_named(tmp_path):
    files, _ = split_model(tmp_path)
    total = b"split.tensors.count" + u32(5)
    for file in files:
        patched(file, total + struct.pack("<i", 7), total + struct.pack("<i", 8))
    with pytest.raises(ModelFileError, match=r"split\.tensors\.count is 8, but .* hold 7"):
        open_checkpoint(files[0])


def test_renamed_split_file_is_explained(tmp_path):
    files, _ = split_model(tmp_path)
    files[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"one of 3 split files.*original names"):
        open_checkpoint(tmp_path / "model.gguf")


def test_tensor_in_two_split_files(tmp_path):
    files, _ = split_model(tmp_path)
    patched(files[2], text("t6"), text("t0"))
    with pytest.raises(ModelFileError, match=r"'t0' is already in .*do not belong together"):
        open_checkpoint(files[0])


def test_truncated_split_file_is_named(tmp_path):
    files, _ = split_model(tmp_path)
    files[2].write_bytes(files[2].read_bytes()[:-64])
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf: the file is truncated"):
        open_checkpoint(files[0])
