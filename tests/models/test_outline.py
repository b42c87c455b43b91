"""Models from a config alone: the same program as when loaded, and the cost that others count.

Outside opinions: `transformers` counts the parameters and torch's FlopCounterMode the products of
its matmuls; the `gguf` package gives the bytes of every tensor of the real files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

import tiny_models
from headrace.errors import ModelFileError
from headrace.formats import sources
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.models.outline import outline_from_hf, uniform
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.ops.record import record
from headrace.ops.recording import Attend, Embed, Linear
from headrace.quant.formats import BF16, F32, Q4_K, Q8_0


@pytest.fixture(scope="module", params=tiny_models.MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, as `transformers` saved it."""
    return tiny_models.build(request.param, tmp_path_factory.mktemp(request.param))


def config_of(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


@pytest.mark.torch
def test_a_config_gives_the_program_that_loading_gives(directory: Path) -> None:
    loaded = load(open_checkpoint(directory))
    outlined = outline_from_hf(config_of(directory), format_of=uniform(F32))
    assert record(outlined) == record(loaded)
    assert {n: (t.format, t.shape) for n, t in outlined.weights.items()} == {
        n: (t.format, t.shape) for n, t in loaded.weights.items()
    }


@pytest.mark.torch
def test_parameters_and_products_as_torch_counts_them(directory: Path) -> None:
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager"
    )
    ours = CostModel(outline_from_hf(config_of(directory)))
    assert ours.num_parameters == model.num_parameters()
    for tokens in (1, 37):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.arange(tokens)[None], use_cache=False)
        counted = counter.get_flop_counts()["Global"]
        products = {str(op).rpartition(".")[2]: n for op, n in counted.items()}
        step = ours.step([Chunk(tokens, tokens)], num_logit_rows=tokens)
        linear = sum(c.operations for c in step.ops if isinstance(c.op, Linear))
        assert linear == products["mm"] + products.get("addmm", 0)
        if tokens == 1:  # one query on itself: nothing is masked
            attention = sum(c.operations for c in step.ops if isinstance(c.op, Attend))
            assert attention == products["bmm"]


def check_file(name: str) -> None:
    """Bytes and products of a real file against the gguf package's reading of it."""
    path = sources.resolve(name)
    used = {t.name: t for t in gguf.GGUFReader(path).tensors}
    model = CostModel(load(open_checkpoint(path)))
    untied = "output.weight" in used
    assert model.weight_bytes == sum(int(t.n_bytes) for t in used.values())
    assert model.num_parameters == sum(int(t.n_elements) for t in used.values())

    tokens = 3
    step = model.step([Chunk(tokens, tokens)], num_logit_rows=tokens)
    table = used["token_embd.weight"]
    row_bytes = int(table.n_bytes) // int(table.shape[1])
    gathered = sum(c.weight_bytes for c in step.ops if isinstance(c.op, Embed))
    assert gathered == tokens * row_bytes
    read = {n: t for n, t in used.items() if n != "token_embd.weight" or not untied}
    assert step.total.weight_bytes == gathered + sum(int(t.n_bytes) for t in read.values())
    numbers = sum(int(t.n_elements) for t in read.values() if len(t.shape) == 2)
    linear = sum(c.operations for c in step.ops if isinstance(c.op, Linear))
    assert linear == 2 * tokens * numbers
    assert step.total.int8_operations == linear


@pytest.mark.models
def test_costs_of_a_real_file() -> None:
    check_file("smollm2-135m")


@pytest.mark.large
@pytest.mark.parametrize("name", ["gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_costs_of_the_other_real_files(name: str) -> None:
    check_file(name)


def test_vectors_and_rows_that_fill_no_block_stay_plain() -> None:
    config = tiny_models.MODELS["llama-256"][1] | {"model_type": "llama", "rms_norm_eps": 1e-5}
    formats = {
        fmt.name: outline_from_hf(config, format_of=uniform(fmt)).weights for fmt in (Q8_0, Q4_K)
    }
    assert formats["Q4_K"]["layers.0.q"].format is Q4_K
    assert formats["Q4_K"]["layers.0.attn_norm"].format is F32
    odd = outline_from_hf(config | {"intermediate_size": 88}, format_of=uniform(Q8_0)).weights
    assert (odd["layers.0.down"].format, odd["layers.0.up"].format) == (BF16, Q8_0)


@pytest.mark.parametrize("model_type", ["mamba", ""])
def test_an_unknown_architecture_is_named(model_type: str) -> None:
    with pytest.raises(ModelFileError, match=f'a file: architecture "{model_type}" is not supp'):
        outline_from_hf({"model_type": model_type}, source="a file")
