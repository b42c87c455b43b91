"""engines.toml and engines_for: every fact has its page and words, and the clear cases come out."""

from __future__ import annotations

import itertools

import pytest

from headrace.limits.plan.engines import engines_for, known_engines, platform_of, weight_kind
from headrace.limits.plan.hardware import Hardware, find_hardware, known_hardware
from headrace.models.catalog import HF_MODEL_TYPES

TABLE = known_engines()
PLATFORMS = {"nvidia", "amd-gpu", "apple", "x86", "arm"}
KINDS = {"plain", "gguf", "fp8", "int8", "int4", "mxfp4", "nvfp4"}


def _names(hardware: str, weights: str, concurrency: int, architecture: str = "llama") -> list[str]:
    choices = engines_for(
        find_hardware(hardware),
        architecture=architecture,
        weight_format=weights,
        concurrency=concurrency,
    )
    return [choice.engine for choice in choices if choice.suits]


def test_the_seven_engines_are_there() -> None:
    assert {name.removesuffix("V3") for name in TABLE.engines} == {
        *("llama.cpp", "vLLM", "SGLang", "TensorRT-LLM", "ExLlama", "MLX LM", "Headrace"),
    }


@pytest.mark.parametrize("name", sorted(TABLE.engines))
def test_every_fact_has_a_page_and_its_words(name: str) -> None:
    engine = TABLE.engines[name]
    assert engine.url.startswith("https://") or name == "Headrace"
    assert set(engine.platforms) <= PLATFORMS
    assert set(engine.formats) <= KINDS
    assert all(quote.strip() for quote in engine.platforms.values())
    for kind, support in engine.formats.items():
        assert support.grade in ("native", "convert", "experimental"), kind
        assert support.quote.strip(), kind
        assert support.do or support.grade == "native", kind


def test_the_order_names_exactly_the_engines_of_each_platform() -> None:
    assert set(TABLE.order) == PLATFORMS
    for platform, situations in TABLE.order.items():
        there = {name for name, engine in TABLE.engines.items() if platform in engine.platforms}
        for situation, order in situations.items():
            assert sorted(order) == sorted(there), (platform, situation)


@pytest.mark.parametrize(
    ("hardware", "weights", "concurrency", "first"),
    [
        ("h100", "BF16", 64, "vLLM"),
        ("h100", "FP8", 64, "vLLM"),
        ("mi300x", "BF16", 64, "vLLM"),
        ("rtx-4090", "Q4_K", 1, "llama.cpp"),
        ("rtx-4090", "INT4", 1, "ExLlamaV3"),
        ("b200", "NVFP4", 64, "TensorRT-LLM"),
        ("m4-max", "BF16", 1, "MLX LM"),
        ("m4-max", "Q4_K", 1, "llama.cpp"),
        ("epyc-9654", "Q4_K", 1, "Headrace"),
        ("xeon-6980p", "BF16", 32, "Headrace"),
        ("graviton4", "Q4_K", 1, "llama.cpp"),
        ("raspberry-pi-5", "Q4_K", 1, "llama.cpp"),
    ],
)
def test_clear_cases(hardware: str, weights: str, concurrency: int, first: str) -> None:
    assert _names(hardware, weights, concurrency)[0] == first


def test_what_an_engine_cannot_do_rules_it_out() -> None:
    assert "TensorRT-LLM" not in _names("mi300x", "BF16", 64)
    assert "MLX LM" not in _names("h100", "BF16", 1)
    assert "MLX LM" not in _names("m4-max", "Q4_K", 1)  # no GGUF
    assert _names("raspberry-pi-5", "FP8", 1) == []
    assert "Headrace" not in _names("h100", "BF16", 1)
    assert "Headrace" not in _names("graviton4", "BF16", 1)  # x86-64 only
    assert "ExLlamaV3" not in _names("rtx-4090", "BF16", 1, architecture="gpt2")
    assert "Headrace" not in _names("epyc-9654", "BF16", 1, architecture="mamba")


def test_experimental_support_comes_last_of_those_that_suit() -> None:
    assert _names("h100", "Q4_K", 64) == ["llama.cpp", "vLLM"]
    assert _names("h100", "BF16", 1)[-1] in ("llama.cpp", "ExLlamaV3")  # which convert first


def test_every_combination_is_answered_for_every_engine_in_sentences() -> None:
    weights = ("F32", "BF16", "Q4_K", "q8_0", "FP8", "INT8", "INT4", "MXFP4", "NVFP4")
    for hardware, name, concurrency in itertools.product(known_hardware(), weights, (1, 4, 5, 256)):
        choices = engines_for(
            find_hardware(hardware),
            architecture="llama",
            weight_format=name,
            concurrency=concurrency,
        )
        assert sorted(c.engine for c in choices) == sorted(TABLE.engines)
        suits = [c.suits for c in choices]
        assert suits == sorted(suits, reverse=True)
        for choice in choices:
            assert choice.why.endswith(".")
            assert choice.url
            assert choice.quote or not choice.suits


def test_a_gpu_of_nobody_known_is_not_guessed_at() -> None:
    card = Hardware("card", "A card", "gpu", memory_bytes=16e9)
    assert platform_of(card) == "gpu"
    choices = engines_for(card, architecture="llama", weight_format="BF16", concurrency=1)
    assert not any(choice.suits for choice in choices)
    assert "vendor is not known" in choices[0].why


def test_headrace_lists_its_own_architectures() -> None:
    families = {family.name for family in HF_MODEL_TYPES.values()}
    assert set(TABLE.engines["Headrace"].architectures or ()) == families


@pytest.mark.parametrize(
    ("name", "kind"),
    [("bf16", "plain"), ("F32", "plain"), ("Q4_K", "gguf"), ("iq4_nl", "gguf"), ("FP8", "fp8")],
)
def test_kinds_of_weights(name: str, kind: str) -> None:
    assert weight_kind(name) == kind
