"""models.toml: each description is the model it names. Oracle: the parameters that `transformers`
builds from the same fields, and the headers of the real files."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.formats.aliases import ALIASES
from headrace.formats.sources import alias_path
from headrace.limits.plan.builtin import built_in_models
from headrace.limits.plan.resolve import resolve_model
from headrace.models.outline import ModelOutline, outline_from_hf

BUILT_IN = built_in_models()
# What the models' publishers or the specification's worked example say, in billions.
PUBLISHED = {"llama-2-13b": 13.02, "qwen3-8b": 8.2}


def _outline(name: str) -> ModelOutline:
    words = {k: v for k, v in BUILT_IN[name].config.items() if k != "rope_scaling"}
    return outline_from_hf(words, source=name)


def _parameters(program: ModelOutline) -> int:
    return sum(math.prod(spec.shape) for spec in program.weights.values())


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_description_has_a_source_and_builds(name: str) -> None:
    model = BUILT_IN[name]
    assert model.url.startswith("https://")
    assert model.read == "2026-11-30"
    assert resolve_model(name).program.num_layers == _outline(name).num_layers


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert _parameters(_outline(name)) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_parameters_are_those_that_transformers_makes(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields: dict[str, Any] = dict(BUILT_IN[name].config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # named_parameters() gives a tied output matrix once, as ours.
    theirs = sum(tensor.numel() for _, tensor in model.named_parameters())
    assert _parameters(_outline(name)) == theirs


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_a_description_is_the_model_of_its_file(name: str) -> None:
    _equal_to_file(name)


@pytest.mark.large
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_a_description_is_the_model_of_its_large_file(name: str) -> None:
    _equal_to_file(name)


def _equal_to_file(name: str) -> None:
    path = alias_path(ALIASES[name])
    ours, file = _outline(name).config, resolve_model(str(path)).program.config
    for field in (
        *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
        *("head_dim", "vocab_size", "max_context", "windows", "attention_scale", "qkv_bias"),
    ):
        assert getattr(ours, field) == getattr(file, field), field
