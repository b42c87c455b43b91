"""`headrace models`: output, JSON, exit codes, clear errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Result, headrace

SOURCE = Path(__file__).parents[2] / "src"


def run(*arguments: str, **environment: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return headrace("models", *arguments)


def facts(*arguments: str, **environment: str) -> Any:
    result = run(*arguments, "--json", **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_list_shows_the_aliases_of_an_empty_cache(tmp_path: Path) -> None:
    result = run("list", "--json", HEADRACE_CACHE=str(tmp_path))
    rows = json.loads(result.stdout)
    assert [r["name"] for r in rows] == [
        "smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma3-270m",
    ]  # fmt: skip
    assert not any(r["cached"] for r in rows)
    assert "smollm2-135m" in run("list", HEADRACE_CACHE=str(tmp_path)).stdout


@pytest.mark.models
def test_show_tells_what_quantising_at_load_does() -> None:
    shown = facts("show", "smollm2-135m", "--quantize", "q4_0")["quantize"]
    assert shown["formats"] == {"Q4_0": 210}
    assert shown["kept"] == 1  # the tied head, stored as Q8_0
    assert shown["result_bytes"] < shown["stored_bytes"]
    text = run("show", "smollm2-135m", "--quantize", "q2_k").stdout
    assert "rows of 180 do not divide by 256, which Q2_K needs" in text
    assert "rounded a second time" in text
    assert run("show", "smollm2-135m", "--quantize", "q9").returncode == 2


@pytest.mark.models
def test_show_smollm2() -> None:
    shown = facts("show", "smollm2-135m")
    assert shown["architecture"] == "llama"
    assert shown["licence"] == "apache-2.0"
    assert shown["context"] == 8192
    assert shown["shapes"]["query_heads"] == 9
    assert shown["shapes"]["kv_heads"] == 3
    assert shown["parameters"] == 134_515_008
    # 30 layers × 2 × 3 heads × 64 × 2 bytes
    assert shown["kv"][0]["bytes_per_token"]["bf16"] == 30 * 2 * 3 * 64 * 2
    groups = {g["group"]: g for g in shown["tensors"]}
    assert groups["mlp"]["formats"] == {"Q4_1": 90}
    assert groups["mlp"]["bits_per_weight"] == 5.0
    size = shown["size"]
    assert size["naive_bytes"] < size["tensor_bytes"] < size["file_bytes"] == 98_362_432
    text = run("show", "smollm2-135m").stdout
    for words in ("Q4_1", "8,192 tokens", "9 query heads", "KV bytes per token", "23,040"):
        assert words in text


@pytest.mark.models
def test_show_gemma3_has_two_kv_groups() -> None:
    shown = facts("show", "gemma3-270m")
    assert [(g["group"], g["layers"], g["window"]) for g in shown["kv"]] == [
        ("full", 3, None),
        ("window512", 15, 512),
    ]
    assert shown["tokenizer"]["add_bos"] is True
    assert [e["text"] for e in shown["tokenizer"]["eos"]] == ["<eos>", "<end_of_turn>"]


@pytest.mark.models
def test_export_and_pull(tmp_path: Path) -> None:
    exported = facts("export-tokenizer", "smollm2-135m", str(tmp_path / "out"))
    assert [Path(f).name for f in exported["files"]] == ["tokenizer.json", "tokenizer_config.json"]
    assert "chat_template" in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    path = run("pull", "smollm2-135m", "--offline").stdout.strip()
    assert Path(path).is_file()


def test_a_file_we_can_not_run_is_still_described(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "unheard")
    import numpy as np

    writer.add_tensor("blk.0.attn_q.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shown = facts("show", str(path))
    assert shown["runs"] is False
    assert "unheard" in shown["reason"]
    assert shown["parameters"] == 128
    assert "can not run" in run("show", str(path)).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "smollm2-136m"), 1, "did you mean smollm2-135m"),
        (("show", "./nowhere.gguf"), 1, "does not exist"),
        (("pull", "smollm2-135m", "--offline"), 1, "network is off"),
        (("rm", "smollm2-135m"), 1, "not in the cache"),
        (("rm", "./x"), 1, "only those can be removed"),
        (("show",), 2, "MODEL"),
        (("show", "x", "--nonsense"), 2, "nonsense"),
    ],
)
def test_errors_are_one_sentence(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    result = run(*arguments, HEADRACE_CACHE=str(tmp_path))
    assert result.returncode == code
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.models
def test_packed_weights_are_kept_listed_and_cleared(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "generate", "smollm2-135m", "-p", "Rain",
               "-n", "8", "--quantize", "q4_0", "--weight-cache", str(tmp_path)]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    texts = [
        subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=120)
        for _ in range(2)
    ]
    assert texts[0].stdout == texts[1].stdout != ""
    listed = facts("cache", "--weight-cache", str(tmp_path))
    assert [row["formats"] for row in listed] == [["Q4_0", "Q8_0"]]
    assert listed[0]["source"].endswith(".gguf")
    assert "1 files" in run("cache", "--weight-cache", str(tmp_path)).stdout
    assert facts("cache", "--clear", "--weight-cache", str(tmp_path))["freed_bytes"] > 8e7
    assert facts("cache", HEADRACE_WEIGHT_CACHE=str(tmp_path)) == []
