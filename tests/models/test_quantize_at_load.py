"""Quantising at load: which weights, to which bytes, and that every interpreter sees the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_models
from headrace.errors import ModelFileError, UsageError
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import LoadedModel, load
from headrace.models.quantize import format_for, parse_format, quantize
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.ops.quantize import QUANTISERS
from headrace.quant.dequantize import dequantize, dequantized_slices
from headrace.quant.formats import BF16, FORMATS, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0
from headrace.quant.tensor import HostTensor, PendingTensor
from small_program import batch_of, streams

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build("llama-256", tmp_path_factory.mktemp("hf"))


def logits(model: LoadedModel) -> np.ndarray:
    """Of the last of 40 pseudo-random tokens."""
    native = NativeModel(model, num_threads=1, max_tokens=64)
    (stream,), blocks = streams((40,), len(model.kv_groups), 16, tiny_models.VOCAB)
    native.allocate_kv([blocks] * len(model.kv_groups), 16, KVFormat.F32)
    return native.run(batch_of([(stream, 40)], 16, logits="last")).copy()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_layers_get_the_bytes_of_a_quantised_file(
    name: str, directory: Path, tmp_path: Path
) -> None:
    """A GGUF file that the `gguf` package quantised holds the same rows, in the file's order."""
    done = quantize(load(open_checkpoint(directory)), FORMATS[name])
    file = load(open_checkpoint(tiny_models.to_gguf(directory, tmp_path / "m.gguf", name)))
    assert len(done.choices) == 2 * 7 + 1
    assert done.kept == 0
    for choice in done.choices:
        if choice.name.startswith("layers."):
            ours, theirs = done.model.weights[choice.name], file.weights[choice.name]
            assert ours.format is theirs.format is FORMATS[name]
            rows = theirs.data if theirs.row_order is None else theirs.data[theirs.row_order]
            np.testing.assert_array_equal(ours.data, rows)


@pytest.mark.parametrize("target", QUANTISERS, ids=lambda f: f.name)
def test_files_in_another_row_order_give_the_same_model(
    target: object, directory: Path, tmp_path: Path
) -> None:
    """GGUF's permuted query and key rows are quantised as they lie, and still answer alike."""
    assert target in QUANTISERS
    hf = quantize(load(open_checkpoint(directory)), target).model
    path = tiny_models.to_gguf(directory, tmp_path / "m.gguf", "F32")
    gguf = quantize(load(open_checkpoint(path)), target).model
    assert any(t.row_order is not None for t in gguf.weights.values())
    ours = logits(hf)
    np.testing.assert_array_equal(ours, logits(gguf))
    plain = logits(load(open_checkpoint(directory)))
    assert 0 < np.abs(ours - plain).max() < np.abs(plain).max()


def test_norms_biases_and_the_embedding_stay(directory: Path) -> None:
    plain = load(open_checkpoint(directory))
    done = quantize(plain, Q4_0)
    for name, tensor in done.model.weights.items():
        quantised = name == "lm_head" or (name.startswith("layers.") and "norm" not in name)
        assert isinstance(tensor, PendingTensor) == quantised, name
        if not quantised:
            assert tensor is plain.weights[name]
    assert done.model.weights["lm_head"].format is Q6_K
    assert "Q4_0 ×14, Q6_K ×1; matrices" in done.describe()


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "gpt2"])
def test_a_tied_head_is_untied_and_the_gather_stays_exact(name: str, tmp_path: Path) -> None:
    plain = load(open_checkpoint(tiny_models.build(name, tmp_path)))
    assert plain.config.tied_embeddings
    # Rows of 40, 84 and 42 do not divide: nothing is quantised, and the model stays tied.
    kept = quantize(plain, Q8_0)
    assert kept.model.config.tied_embeddings
    if name == "qwen2":  # but down reads the 96 of its FFN
        assert {c.name.split(".")[-1] for c in kept.choices} == {"down"}
    wide = quantize(_tied(tmp_path / "wide"), Q4_0)
    assert not wide.model.config.tied_embeddings
    assert wide.model.weights["lm_head"].format is Q8_0
    embed = wide.model.weights["embed"]
    assert embed.format.name == "F32"
    head, table = dequantize(wide.model.weights["lm_head"]), dequantize(embed)
    assert 0 < np.abs(head - table).max() < np.abs(table).max() / 100
    assert np.isfinite(logits(wide.model)).all()


def _tied(directory: Path) -> LoadedModel:
    """The llama3-rope model (rows of 64 and 96) with its head taken away."""
    tiny_models.build("llama3-rope", directory)
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    return load(open_checkpoint(directory))


def test_rows_that_do_not_divide_fall_back_and_it_is_said(tmp_path: Path) -> None:
    done = quantize(load(open_checkpoint(tiny_models.build("llama3-rope", tmp_path))), Q4_K)
    assert {c.target.name for c in done.choices if c.name != "lm_head"} == {"Q5_0"}
    assert "rows of 14 do not divide by 256, which Q4_K needs" in done.describe()


def test_stored_formats_are_never_widened_and_second_roundings_are_said(
    directory: Path, tmp_path: Path
) -> None:
    plain = load(open_checkpoint(tiny_models.to_gguf(directory, tmp_path / "m.gguf", "Q5_0")))
    same = quantize(plain, Q5_0)
    assert same.choices == ()
    assert "nothing to quantise to Q5_0" in same.describe()
    again = quantize(plain, Q4_0)
    assert len(again.choices) == 14  # the head is stored in fewer bits than it would get
    assert again.kept == 1
    assert "14 were quantised before and are rounded a second time" in again.describe()
    assert again.result_bytes < again.stored_bytes


def test_choice_of_format() -> None:
    def tensor(columns: int) -> HostTensor:
        return HostTensor(BF16, (4, columns), np.zeros((4, 2 * columns), np.uint8))

    def names(columns: int, *, head: bool) -> list[str | None]:
        found = (format_for(tensor(columns), f, head=head) for f in QUANTISERS)
        return [None if f is None else f.name for f in found]

    assert names(256, head=False) == [f.name for f in QUANTISERS]
    assert names(96, head=False) == [
        "Q8_0", "Q8_0", "Q5_1", "Q5_0", "Q5_1", "Q4_1", "Q4_0", "Q5_0", "Q4_0", "Q4_0",
    ]  # fmt: skip
    assert names(256, head=True) == ["Q8_0"] + ["Q6_K"] * 9
    assert names(96, head=True) == ["Q8_0"] * 10
    assert names(100, head=False) == [None] * 10


def test_pending_tensors_hold_no_bytes_and_repeat_themselves(directory: Path) -> None:
    tensor = quantize(load(open_checkpoint(directory)), Q4_K).model.weights["layers.0.up"]
    assert isinstance(tensor, PendingTensor)
    assert tensor.data is not tensor.data
    np.testing.assert_array_equal(tensor.data, tensor.data)
    assert tensor.num_bytes == tensor.data.nbytes
    whole = dequantize(tensor)
    parts = np.concatenate([part for _, part in dequantized_slices(tensor, 100)])
    np.testing.assert_array_equal(parts, whole)
    assert type(tensor.loaded()) is HostTensor


def test_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    tiny_models.build("llama-256", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = quantize(load(open_checkpoint(tmp_path)), Q4_0).model
    with pytest.raises(ModelFileError, match=r"weight layers\.1\.up cannot be stored as Q4_0"):
        NativeModel(model, num_threads=1)


def test_names_of_formats() -> None:
    assert parse_format("q4_k") is Q4_K
    assert parse_format("Q8_0") is Q8_0
    with pytest.raises(UsageError, match=r"quantize = 'q4k' is unknown: q8_0, .*Did you mean q4_k"):
        parse_format("q4k")
    with pytest.raises(UsageError, match="is unknown"):
        parse_format("F16")


def test_the_reference_sees_the_quantised_weights(directory: Path) -> None:
    from headrace.verify.ladder import run_ladder
    from headrace.verify.subject import Subject

    model = quantize(load(open_checkpoint(directory)), Q4_K).model
    names = ("native = reference", "op by op", "whole = chunked", "instruction sets agree")
    subject = Subject(model, tiny_models.VOCAB, num_threads=1, length=400)
    report = run_ladder(subject, only=lambda name: name in names)
    assert len(report.rungs) == 4
    assert report.passed, report.failed


def test_llm_takes_the_option_and_says_what_it_did(directory: Path, tmp_path: Path) -> None:
    from headrace.engine.llm import LLM
    from headrace.engine.params import SamplingParams

    class Notes(list[str]):
        def note(self, text: str) -> None:
            self.append(text)

        def progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
            raise AssertionError("nothing is fetched")

    def texts(**options: object) -> list[str]:
        llm = LLM(directory, max_model_len=64, num_threads=1, **options)
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        return [o.outputs[0].text for o in llm.generate(["ab", "The sea"], params)]

    notes = Notes()
    plain = texts()
    fine = texts(quantize="q8_0", progress=notes)
    assert len(notes) == 1
    assert "quantised at load: Q8_0 ×15; matrices" in notes[0]
    assert texts(quantize="q8_0", weight_cache=str(tmp_path)) == fine
    assert texts(quantize="q8_0", weight_cache=str(tmp_path)) == fine
    assert texts(weight_cache=str(tmp_path)) == plain
    assert len(list(tmp_path.glob("*.packed"))) == 2
    with pytest.raises(UsageError, match="quantize = 'x' is unknown"):
        LLM(directory, quantize="x")


def test_a_file_replaced_in_place_is_never_served_from_the_cache(tmp_path: Path) -> None:
    """Same size, even the same time of change: the samples of the weights tell."""
    import os

    from headrace.engine.llm import LLM
    from headrace.engine.params import SamplingParams

    def text(**options: object) -> str:
        llm = LLM(tmp_path / "hf", max_model_len=64, num_threads=1, quantize="q4_0", **options)
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        return llm.generate("ab", params)[0].outputs[0].text

    cached = {"weight_cache": str(tmp_path / "packed")}
    file = tmp_path / "hf" / "model.safetensors"
    tiny_models.build("llama-256", tmp_path / "hf", seed=0)
    before, status = text(**cached), file.stat()
    tiny_models.build("llama-256", tmp_path / "hf", seed=1)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    assert text(**cached) == text() != before
