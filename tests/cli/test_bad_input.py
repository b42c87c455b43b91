"""Bad input at the command line: one clear sentence, the right exit code, no traceback.

Every case runs the real command on files made here or on smollm2; some in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Result, headrace

SMALL_HEADER = b"GGUF" + (3).to_bytes(4, "little")


def process(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True, text=True, input=text, env=environment, timeout=120, check=False,
    )  # fmt: skip


def assert_clean(result: Result | subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    message = " ".join(lines)
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


def shell(line: str, *, ascii_only: bool = False) -> subprocess.CompletedProcess[str]:
    """`headrace LINE` through a shell, for what only a shell can do with its streams."""
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": source, "NO_COLOR": "1"}
    if ascii_only:
        environment["PYTHONIOENCODING"] = "ascii"
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m headrace.cli.main {line}"],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def gguf(tmp_path: Path, *, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> str:
    header = SMALL_HEADER + tensors.to_bytes(8, "little") + keys.to_bytes(8, "little")
    return write(tmp_path / "model.gguf", header + rest)


def test_missing_file() -> None:
    assert_clean(process("generate", "./no/such.gguf", "-p", "x"), 1, "no/such.gguf")


def test_unknown_alias_suggests_a_near_one() -> None:
    result = headrace("generate", "smollm2-135", "-p", "x", "--offline")
    assert_clean(result, 1, "smollm2-135", "smollm2-135m")


def test_wrong_magic(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", b"this is no model at all, but it is long enough to read")
    assert_clean(headrace("generate", path, "-p", "x"), 1, "a.gguf")


def test_empty_file(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.gguf", b"")
    assert_clean(headrace("generate", path, "-p", "x"), 1, "empty.gguf")


def test_truncated_header(tmp_path: Path) -> None:
    assert_clean(headrace("generate", gguf(tmp_path, keys=3), "-p", "x"), 1, "model.gguf")


def test_absurd_counts(tmp_path: Path) -> None:
    path = gguf(tmp_path, tensors=2**60, keys=2**60)
    assert_clean(headrace("generate", path, "-p", "x"), 1, "model.gguf")


def test_pickle_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "pytorch_model.bin", b"PK\x03\x04" + bytes(100))
    assert_clean(headrace("generate", path, "-p", "x"), 1, "pytorch_model.bin")


def test_unknown_architecture_and_rope_type_are_named(tmp_path: Path) -> None:
    for change, word in (
        ({"model_type": "bloomzilla"}, "bloomzilla"),
        ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "foo"),
    ):
        config = {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
            "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        } | change  # fmt: skip
        directory = tmp_path / word
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        header = b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        (directory / "model.safetensors").write_bytes(
            len(header).to_bytes(8, "little") + header + bytes(4)
        )
        assert_clean(headrace("generate", str(directory), "-p", "x"), 1, word)


@pytest.mark.models
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-p", ""], 1, ["empty"]),
        (["-p", "x", "--temperature", "-1"], 2, ["temperature"]),
        (["-p", "x", "--top-p", "1e999"], 2, ["top_p"]),
        (["-p", "x", "--min-p", "2"], 2, ["min_p"]),
        (["-p", "x", "-n", "-1"], 2, ["max_tokens"]),
        (["-p", "x", "--samples", "0"], 2, ["n = 0"]),
        (["-p", "x", "-c", "9000"], 2, ["max_model_len", "8192"]),
        (["-p", "x", "-c", "16", "-n", "16"], 1, ["16", "max_tokens"]),
        (["-p", "x", "--kv-cache-dtype", "q3"], 2, ["q3", "bf16"]),
        (["-p", "x", "--block-size", "17"], 2, ["block_size", "16"]),
        (["-p", "x", "--kv-cache-memory", "much"], 2, ["much"]),
        (["-p", "x", "--kv-cache-memory", "1"], 1, ["kv_cache_memory"]),
        (["-p", "x", "--threads", "0"], 2, ["num_threads"]),
        (["-p", "x", "--no-such-flag"], 2, ["--no-such-flag"]),
        (["-p", "x", "-n", "many"], 2, ["--max-tokens"]),
        ([], 2, ["--prompt"]),
        (["-p", "x", "-f", "y"], 2, ["--prompt"]),
        (["-f", "/no/such/prompt.txt"], 2, ["/no/such/prompt.txt"]),
        (["-p", "x", "--logprobs", "3"], 2, ["--json"]),
        (["-p", "x", "--json-schema", "{"], 2, ["structured_outputs.json"]),
        (["-p", "x", "--json-schema", '{"not": {}}'], 2, ["structured_outputs.json", "not"]),
        (["-p", "x", "--json-schema", "/no/such/schema"], 2, ["/no/such/schema"]),
    ],
)
def test_bad_parameters(arguments: list[str], code: int, words: list[str]) -> None:
    assert_clean(headrace("generate", "smollm2-135m", *arguments), code, *words)


@pytest.mark.models
def test_prompt_longer_than_the_context_names_both_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "long.txt", b"word " * 700)
    result = headrace("generate", "smollm2-135m", "-f", path, "-c", "512", "-n", "4")
    assert_clean(result, 1, "512", "701")


@pytest.mark.models
def test_a_prompt_that_is_not_text(tmp_path: Path) -> None:
    path = write(tmp_path / "binary.txt", b"abc\xff\xfe")
    assert_clean(headrace("generate", "smollm2-135m", "-f", path), 2, "binary.txt", "UTF-8")


@pytest.mark.models
def test_a_truncated_real_model_is_named(tmp_path: Path) -> None:
    from headrace.formats.sources import resolve

    whole = resolve("smollm2-135m")
    with open(whole, "rb") as source:
        path = write(tmp_path / "cut.gguf", source.read(20_000_000))
    assert_clean(headrace("generate", path, "-p", "x"), 1, "cut.gguf")


def test_unknown_command() -> None:
    assert_clean(process("genrate"), 2, "genrate")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("models list >&-", 0, ""),
        ("models list 2>&-", 0, ""),
        ("models list | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}", 0, ""),
        ("models list >/dev/full", 1, "headrace: No space left on device\n"),
        ("env >/dev/full", 1, "headrace: No space left on device\n"),
        ("perplexity nowhere.gguf - <&-", 1, "headrace: nowhere.gguf does not exist\n"),
    ],
)
def test_streams_that_are_closed_or_full(line: str, code: int, said: str) -> None:
    result = shell(line)
    assert result.returncode == code, result.stderr
    assert result.stderr == said


@pytest.mark.models
def test_stdout_that_can_not_spell_the_text() -> None:
    line = "generate smollm2-135m -p '日本語: 東京、東京、東京、東京、' -n 8"
    result = shell(line, ascii_only=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "?" in result.stdout
    assert result.stdout.isascii()
