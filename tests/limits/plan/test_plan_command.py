"""`headrace plan`: MODEL in every form, every option, bad input, and what the pages say."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from asking import ROUND, command, plan_text, planned

from headrace.bench.host import cpu_name
from headrace.cli.main import app
from headrace.engine.config import EngineOptions, Machine, resolve
from headrace.formats.sources import ALIASES, alias_path
from headrace.limits.calibrations import calibration_path, kernel_version, save_calibration
from headrace.limits.estimate import Calibration, Curve
from headrace.limits.machine import quick_rates
from headrace.limits.plan import ask, plan
from headrace.limits.plan.report import text
from headrace.limits.plan.resolve import resolve_model

ROOT = Path(__file__).parents[3]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
#: 2·V·E + (3·E·F + 2·E·H·D + 2·E·K·D)·L, two bytes each; 2L + 1 norms of E, four bytes each.
WEIGHT_BYTES = 2 * (2 * 1000 * 256 + (3 * 256 * 512 + 2 * 256 * 256 + 2 * 256 * 128) * 4)
NORM_BYTES = 9 * 256 * 4


@pytest.fixture
def machine(tmp_path: Path) -> str:
    file = tmp_path / "machines.toml"
    file.write_text(ROUND)
    return str(file)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    file = directory / "config.json"
    file.write_text(json.dumps(CONFIG))
    return file


def test_a_config_by_hand(config: Path, machine: str) -> None:
    """8 requests of 1,000 positions: 63 blocks of 16 each; KV of a token 2·K·D·L·2 bytes."""
    found = planned(str(config), "--hardware", machine, "--ctx", "1000", "--concurrency", "8")
    row, blank = found["rows"]
    memory = row["memory_bytes"]
    assert memory["weights"] == WEIGHT_BYTES + NORM_BYTES
    assert memory["kv"] == 8 * 63 * 16 * (2 * 2 * 64 * 4 * 2)
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert row["free_bytes"] == 24e9 - memory["total"]
    # A step reads everything but the embedding, of which it looks up 8 rows, and 8 caches.
    moved = WEIGHT_BYTES + NORM_BYTES - 2 * 1000 * 256 + 8 * 2 * 256 + 8 * 1000 * 2048
    assert row["tpot_s"] == pytest.approx(moved / 1e12, rel=1e-9)
    assert row["total_tok_per_s"] == pytest.approx(8 / row["tpot_s"])
    assert row["usd_per_mtok"] == pytest.approx(3.6 / 3600 / row["total_tok_per_s"] * 1e6)
    unknown = ("fits", "tpot_s", "ttft_s", "total_tok_per_s", "usd_per_mtok", "max_context")
    assert {blank[name] for name in unknown} == {None}
    assert "its memory is not known" in " ".join(found["recommendation"]["verdicts"])


def test_the_directory_is_the_same(config: Path, machine: str) -> None:
    file, directory = (
        planned(str(name), "--hardware", machine)["rows"] for name in (config, config.parent)
    )
    assert file == directory


def test_quantised_files_keep_their_embedding(config: Path, machine: str) -> None:
    """As AWQ, GPTQ and FP8 files do: --quant says the same, and 4 bits are not all of it."""
    for method, quant in (({"quant_method": "awq", "bits": 4}, "int4"),
                          ({"quant_method": "fp8"}, "fp8")):  # fmt: skip
        expected = planned(str(config), "--hardware", machine, "--quant", quant)
        config.write_text(json.dumps(CONFIG | {"quantization_config": method}))
        assert planned(str(config), "--hardware", machine)["rows"] == expected["rows"]
        config.write_text(json.dumps(CONFIG))
    tables = 2 * 2 * 1000 * 256
    assert expected["rows"][0]["memory_bytes"]["weights"] == (
        tables + (WEIGHT_BYTES - tables) // 2 + NORM_BYTES
    )


def test_the_text_part_of_gemma3_says_only_what_differs(tmp_path: Path, machine: str) -> None:
    """A file like that of the 4B names neither vocabulary nor heads; the built-in one does."""
    file = tmp_path / "config.json"
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    file.write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"})
    )
    found, known = (planned(name, "--hardware", machine) for name in (str(file), "gemma3-4b"))
    assert found["rows"] == known["rows"]


@pytest.mark.models
def test_a_header_is_enough(tmp_path: Path, machine: str) -> None:
    """The first part of the file, cut off where the tensors begin, plans as the whole file does."""
    whole = alias_path(ALIASES["smollm2-135m"])
    header = tmp_path / "header.gguf"
    header.write_bytes(whole.read_bytes()[: 4 << 20])
    expected = planned("smollm2-135m", "--hardware", machine)
    found = planned(str(header), "--hardware", machine)
    assert found["rows"] == expected["rows"]
    assert found["model"]["weight_format"] == "Q4_1"
    assert expected["serve"]["command"][:3] == ["headrace", "serve", "smollm2-135m"]


def test_needs_neither_torch_nor_weights(config: Path, machine: str) -> None:
    """In a process of its own, which then tells what it imported."""
    code = (
        "import sys; from headrace.cli.main import run; "
        f"code = run(['plan', {str(config)!r}, '--hardware', {machine!r}, '--json']); "
        "assert not {'torch', 'transformers'} & set(sys.modules); "
        "sys.exit(code)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["fits"] is True


def test_human_numbers(machine: str) -> None:
    asked = ("llama-3.1-8b", "--hardware", machine)
    found = planned(*asked, "--prompt", "2k", "--output", "1K", "--ttft", "0.5s", "--tpot", "50ms")
    question = found["question"]
    assert (question["prompt"], question["output"], question["context"]) == (2048, 1024, 3072)
    assert (question["ttft_s"], question["tpot_s"]) == (0.5, 0.05)
    changed = planned(*asked, "--set", "memory_bytes=16GiB", "--set", "read_bytes_per_s=2e12")
    assert changed["hardware"][0]["memory_bytes"] == 16 * 2**30
    plain = planned(*asked)
    assert changed["rows"][0]["tpot_s"] == pytest.approx(plain["rows"][0]["tpot_s"] / 2)


def test_targets(machine: str) -> None:
    """The number of requests within the targets meets them, and one more does not."""
    asked = ("llama-3.1-8b", "--hardware", machine, "--quant", "q4_k", "--ctx", "2k")
    targets = ("--tpot", "10ms", "--ttft", "0.4s")
    [row, _] = planned(*asked, *targets)["rows"]
    most = row["max_concurrency_within_targets"]
    assert 1 < most < row["max_concurrency"]
    for requests, good in ((most, True), (most + 1, False)):
        [row, _] = planned(*asked, *targets, "--concurrency", str(requests))["rows"]
        assert row["meets_targets"] is good
        assert (row["tpot_s"] <= 0.01 and row["ttft_joining_s"] <= 0.4) is good


def test_prompts_cost(machine: str) -> None:
    """In a cycle every request computes its prompt once and generates its output."""
    asked = ("llama-3.1-8b", "--hardware", machine, "--quant", "q4_k")
    [row, _] = planned(*asked, "--prompt", "1k", "--output", "100", "--concurrency", "4")["rows"]
    [one, _] = planned(*asked, "--prompt", "1k", "--output", "100")["rows"]
    cycle = 4 * one["ttft_s"] + 100 * row["tpot_s"]
    assert row["sustained_tok_per_s"] == pytest.approx(400 / cycle)
    assert row["sustained_usd_per_mtok"] > row["usd_per_mtok"]


def test_other_forms(machine: str) -> None:
    asked = ("llama-3.1-8b", "--hardware", machine, "--concurrency", "1,4")
    rows = planned(*asked)["rows"]
    table = list(csv.DictReader(io.StringIO(plan_text(*asked, "-o", "csv"))))
    assert [(r["hardware"], int(r["concurrency"])) for r in table] == [
        (r["hardware"], r["concurrency"]) for r in rows
    ]
    assert float(table[1]["tpot_s"]) == rows[1]["tpot_s"]
    assert int(table[1]["kv_bytes"]) == rows[1]["memory_bytes"]["kv"]
    assert table[2]["fits"] == ""
    page = plan_text(*asked, "-o", "md", "--why")
    assert page.count("| round |") == 4
    assert "## Why" in page
    assert planned("--list")["hardware"][0]["numbers"]
    listed = {line.split()[0] for line in plan_text("--list").splitlines() if line[:2] == "  "}
    assert {"local", "FILE.toml", "h100", "llama-2-13b"} <= listed


def test_an_alias_that_was_not_fetched_is_planned_from_its_description(
    tmp_path: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    found = planned("smollm2-135m", "--hardware", machine)
    assert found["model"]["weight_format"] == "BF16"
    assert not cache.exists()


# ---- what people read ---------------------------------------------------------------------------


def test_the_page_keeps_to_the_width() -> None:
    question = ask(
        "llama-3.1-8b",
        hardware="h100,l40s,m4-max,mi300x",
        concurrency="1,32",
        prompt="2k",
        output="256",
        tpot="50ms",
    )
    table = plan(question)
    for width in (80, 100, 120):
        page = text(table, width)
        assert max(map(len, page.splitlines())) <= width
        for word in ("weights", "KV", "fits", "most", "TTFT", "TPOT", "$/Mtok", "Recommendation"):
            assert word in page
        stages = ("1. lossless", "2. quantisation", "3. architecture")
        order = [page.index(stage) for stage in stages]
        assert order == sorted(order)
    assert "joining" in page  # at 120 columns nothing is left away


def test_the_cheapest_that_fits_is_chosen() -> None:
    found = planned("llama-3.1-8b", "--hardware", "h100,l40s,rtx-4090", "--concurrency", "1,16")
    priced = [r for r in found["rows"] if r["fits"] and r["usd_per_mtok"] is not None]
    best = min(priced, key=lambda r: r["usd_per_mtok"])
    choice = found["recommendation"]["choice"]
    assert choice.startswith(f"{best['hardware']} with {best['concurrency']} at once")


def test_advice_counts_as_the_table_does() -> None:
    """By the closed forms 64 requests fit, by the program 63 do; each advises by its own."""
    asked = ("llama-2-13b", "--hardware", "h100", "--ctx", "1k", "--concurrency", "64")
    for form, fitting in (("paper", 64), ("program", 63)):
        found = planned(*asked, "--formula", form)
        (row,) = found["rows"]
        assert row["max_concurrency"] == fitting
        steps = {step["title"]: step["text"] for step in found["recommendation"]["steps"]}
        for title in ("fp8 weights instead of bf16", "a model with 8 KV heads instead of 40"):
            assert f"{row['memory_bytes']['total'] / 1e9:.1f} → " in steps[title]
            assert f"{fitting} → " in steps[title]
        assert f"{row['total_tok_per_s']:,.0f} tok/s together" in steps["continuous batching"]


def test_what_is_not_known_is_what_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "machines.toml"
    file.write_text('[roomy]\nkind = "gpu"\nmemory_bytes = 80e9\n[blank]\nkind = "gpu"\n')
    found = planned("llama-2-13b", "--hardware", str(file))
    assert "read_bytes_per_s" in found["recommendation"]["choice"]
    assert "what fits" not in found["recommendation"]["choice"]
    file.write_text('[blank]\nkind = "gpu"\n')
    found = planned("llama-2-13b", "--hardware", str(file))
    assert "memory_bytes" in found["recommendation"]["choice"]


def test_advice_follows_the_load(machine: str) -> None:
    """Speculation pays where memory binds and not where arithmetic does; KV in fp8 where the cache
    outweighs the weights."""

    def worth(*options: str) -> dict[str, bool]:
        steps = planned("llama-3.1-8b", "--hardware", machine, *options)["recommendation"]["steps"]
        return {step["title"]: step["worth"] for step in steps}

    alone = worth("--ctx", "1k", "--quant", "q4_k")
    assert alone["speculation"]
    assert "fp8 KV cache" not in alone
    many = worth("--ctx", "64", "--quant", "q4_k", "--concurrency", "512",
                 "--set", "int8_ops_per_s=20e12")  # fmt: skip
    assert not many["speculation"]
    long = worth("--ctx", "32k", "--quant", "q4_k", "--concurrency", "4")
    assert long["fp8 KV cache"]


@pytest.mark.parametrize("concurrency", ["7", "300"])
def test_the_command_to_start_is_one_and_holds_what_was_planned(concurrency: str) -> None:
    """Typer takes its words, and the engine makes of them exactly the pools of the plan."""
    question = ask(
        "qwen3-8b", hardware="epyc-9654", context="5000", concurrency=concurrency, quant="q4_k"
    )
    table = plan(question)
    assert table.serve is not None
    words = list(table.serve.command)
    assert words[:2] == ["headrace", "serve"]
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    parsed = serve.make_context("serve", words[2:]).params
    assert parsed["quantize"] == "q4_k"
    options = EngineOptions(
        max_model_len=parsed["max_model_len"],
        max_num_seqs=parsed["max_num_seqs"],
        max_num_batched_tokens=parsed["max_num_batched_tokens"],
        kv_cache_dtype=parsed["kv_cache_dtype"],
        kv_cache_memory=parsed["kv_cache_memory"],
        block_size=parsed["block_size"],
    )
    program = resolve_model("qwen3-8b").program
    config = resolve(options, program.kv_groups, program.max_context, Machine(None, 2))
    assert config.pools.total_bytes == table.rows[0].memory.kv
    assert config.max_model_len == 5000
    assert config.max_num_batched_tokens == question.budget("cpu", int(concurrency))


def test_several_gpus_by_memory() -> None:
    """Weights and KV over n, buffers on each: 2 hold one request, 4 hold 64."""
    table = plan(ask("llama-3.1-70b", hardware="h100", context="8k", concurrency="1,64"))
    verdict = table.recommendation.verdicts[0]
    assert "By memory, 2 hold one and 4 hold all 64, if weights and cache are split" in verdict
    for row, gpus in zip(table.rows, (2, 4), strict=True):
        memory, limit = row.memory, 80e9
        share = memory.weights + memory.kv
        assert share / gpus + memory.activations <= limit < share / (gpus - 1) + memory.activations


def test_the_command_below_the_closed_forms_is_the_programs() -> None:
    """Its pools, and how many fit them: one fewer than by the closed form."""
    asked = {"hardware": "h100", "context": "1024", "concurrency": "64"}
    paper = plan(ask("llama-2-13b", formula="paper", **asked))
    program = plan(ask("llama-2-13b", **asked))
    assert (paper.rows[0].max_concurrency, program.rows[0].max_concurrency) == (64, 63)
    assert paper.serve == program.serve
    note = "Fused kernels, speculation and the command are by the model's program"
    assert note in paper.recommendation.note
    assert note in text(paper, 200)
    assert note not in text(program, 200)


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-2-13b", "--hardware", "h10"], "Did you mean h100"),
        (["llama-2-13b", "--hardware", "h100,"], "no hardware ''"),
        (["llama-2-13b", "--hardware", "gone.toml"], "gone.toml does not exist"),
        (["llama-2-14b"], "Did you mean llama-2-13b"),
        (["nonsense"], "Known: "),
        ([""], "Which MODEL?"),
        (["gone.gguf"], "gone.gguf does not exist"),
        (["/dev/null"], "not a regular file"),
        (["."], "without config.json"),
        (["\0"], "There is no model"),
        (["llama-2-13b", "--ctx", "8k"], "longer than the model's 4,096"),
        (["llama-2-13b", "--prompt", "4000", "--output", "97"], "longer than the model's"),
        (["llama-2-13b", "--ctx", "1k", "--prompt", "1k", "--output", "1"], "do not fit"),
        (["llama-2-13b", "--ctx", "-1"], "--ctx must be a whole number"),
        (["llama-2-13b", "--concurrency", "1,0"], "--concurrency must be"),
        (["llama-2-13b", "--concurrency", "1e9"], "--concurrency must be"),
        (["llama-2-13b", "--quant", "q4k"], "did you mean q4_k"),
        (["llama-2-13b", "--kv-cache-dtype", "int2"], "bf16, f16 or fp8"),
        (["llama-2-13b", "--ttft", "soon"], "--ttft must be a time"),
        (["llama-2-13b", "--tpot", "0ms"], "--tpot must be a time"),
        (["llama-2-13b", "--price", "-2"], "--price must be a positive number, as 2.50, not '-2'"),
        (["llama-2-13b", "--set", "kv_heads"], "KEY=VALUE"),
        (["llama-2-13b", "--set", "kv_heads=8"], "did you mean num_kv_heads"),
        (["llama-2-13b", "--set", "num_kv_heads=7"], "does not divide the 40 query heads"),
        (["gpt2", "--set", "num_kv_heads=1"], "make no gpt2 model"),
        (["llama-2-13b", "--set", "num_layers=99999"], "1 … 1,024"),
        (["llama-2-13b", "--set", "block_size=17"], "multiple of 16"),
        (["llama-2-13b", "--set", "memory_bytes=inf"], "positive number"),
        (["llama-2-13b", "--set", "memory_bytes=0.001"], "positive number"),
        (["llama-2-13b", "--set", "read_bytes_per_s=1e-300"], "positive number"),
        (["llama-2-13b", "--hardware", "\x1b[31mh100"], "no hardware '\\x1b[31mh100'"),
        (["./\x1b[31m.gguf"], "./\\x1b[31m.gguf does not exist"),
        (["llama-2-13b", "--formula", "guess"], "program or paper"),
        (["llama-2-13b", "-o", "yaml"], "table, md, csv, json"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str) -> None:
    if "--hardware" not in arguments:
        arguments = [*arguments, "--hardware", "h100"]
    code, out, err = command("plan", *arguments)
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert err.startswith("headrace: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "neither a GGUF file nor a config.json"),
        (b"GGUF", "truncated"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "header.bin"),
        (b"{", "header.bin"),
        (b"[1]", "neither"),
        (b'{"model_type": "mamba"}', '"mamba" is not supported; supported are'),
        (b'{"model_type": "llama"}', "num_attention_heads is missing"),
        (b'{"model_type": 7}', "model_type"),
        (b'{"model_type": {}, "text_config": {"model_type": []}}', "model_type"),
        (json.dumps(CONFIG | {"hidden_size": 1e30}).encode(), "hidden_size"),
        (json.dumps(CONFIG | {"quantization_config": {"quant_method": "zip"}}).encode(), "'zip'"),
        (json.dumps(CONFIG | {"quantization_config": ["x"]}).encode(), "without a quant_method"),
        (b'{"architectures": ["LlamaForCausalLM"]}', "has no model_type"),
        # Mixtral, Qwen3-MoE, gpt-oss and DeepSeek-V3 in the words of their files
        (b'{"model_type": "mixtral", "num_local_experts": 8}', "a mixture of 8 experts, which"),
        (b'{"model_type": "qwen3_moe", "num_experts": 128}', "a mixture of 128 experts, which"),
        (
            b'{"model_type": "gpt_oss", "num_local_experts": 32, '
            b'"quantization_config": {"quant_method": "mxfp4"}}',
            "a mixture of 32 experts, which",
        ),
        (
            b'{"model_type": "deepseek_v3", "n_routed_experts": 256, "kv_lora_rank": 512}',
            "a mixture of 256 experts and latent attention (MLA), which",
        ),
        (json.dumps(CONFIG | {"num_experts": 4}).encode(), "it plans dense models"),
    ],
)
def test_bad_files_are_one_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "header.bin"
    file.write_bytes(content)
    code, out, err = command("plan", str(file), "--hardware", "h100")
    assert (code, out) == (1, "")
    assert words in err
    assert err.startswith("headrace: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = [", "is not TOML"),
        ("", "has no hardware"),
        ("x = 1", "outside of a [table]"),
        ("[x]\nkind = 'toaster'", "kind must be one of gpu, cpu, apple"),
        ("[x]\nkind = 'gpu'\nmemory = 5", "did you mean memory_bytes"),
        ("[x]\nkind = 'gpu'\nmemory_bytes = 'much'", "positive number"),
        ("[x]\nkind = 'gpu'\nmemory_bytes = {url = 'u'}", "needs value"),
        ("[x]\nkind = 'gpu'\nmemory_bytes = " + "9" * 5000, "is not TOML"),
        ("[x]\nkind = 'gpu'\nmemory_bytes = 0x" + "f" * 5000, "positive number"),
        ("[x]\nkind = 'gpu'\nread_bytes_per_s = 1e-300", "positive number, from 1 to"),
        ("[x]\nkind = 'gpu'\nread_bytes_per_s = nan", "positive number"),
        ('[x]\nkind = "gpu"\ntitle = "a\\nb"', "must be printable"),
        ('["\\u001b[1m"]\nkind = "gpu"', "'\\x1b[1m': name, title"),
        ('[x]\nkind = "gpu"\n"\\u001b[1m" = 5', "is no number of a hardware"),
        ("x = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_hardware_files_are_one_sentence(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "hardware.toml"
    file.write_text(content)
    code, out, err = command("plan", "llama-2-13b", "--hardware", str(file))
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


# ---- calibrations -------------------------------------------------------------------------------


def test_a_kept_calibration_makes_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: every kernel at half its roof and nothing fixed takes at least twice the bound."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    rates = quick_rates()
    half = Curve((1,), (0.5,))
    curves = dict.fromkeys(("row_wise", "linear BF16", "attend 64", "attend 128"), half)
    kept = Calibration(
        cpu_name(), rates.num_threads, rates.isa, kernel_version(), "2026-11-30", curves, 0, 0, 0, 0
    )
    save_calibration(kept)
    asked = ("llama-3.2-1b", "--hardware", "local,h100", "--prompt", "64", "--output", "8",
             "--set", "read_bytes_per_s=1e10", "--set", "bf16_ops_per_s=1e11",
             "--set", "f32_ops_per_s=1e11")  # fmt: skip
    found, bounds = planned(*asked), planned(*asked, "--bounds")
    assert found["question"]["times_of_this_machine"] == "estimate"
    assert bounds["question"]["times_of_this_machine"] == "bound"
    (local, h100), (local_bound, h100_bound) = found["rows"], bounds["rows"]
    assert h100 == h100_bound
    for name in ("ttft_s", "tpot_s"):
        assert 2 * local_bound[name] <= local[name] < 2.5 * local_bound[name]
    text = plan_text(*asked, "--why")
    assert "Estimates from this machine's calibration; of other hardware" in text
    assert "roof ÷ share that is reached" in text
    path = calibration_path(cpu_name(), rates.num_threads, rates.isa)
    path.write_text("{}")
    code, out, err = command("plan", *asked)
    assert (code, out) == (2, "")
    assert "calibrate anew" in err


def test_calibrating_needs_this_machine() -> None:
    asked = ("plan", "llama-2-7b", "--calibrate")
    assert "add local to --hardware" in command(*asked, "--hardware", "h100")[2]
    assert "take one" in command(*asked, "--bounds")[2]
