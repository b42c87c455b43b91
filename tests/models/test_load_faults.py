"""What is wrong with a model file is said in one sentence; nothing wrong is passed over."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from headrace.errors import ModelFileError
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import LoadedModel, load
from headrace.models.weights import Checkpoint
from headrace.quant.formats import F32, Q8_0
from headrace.quant.tensor import HostTensor

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@dataclasses.dataclass(frozen=True)
class Changed:
    """An opened model file with something else in it."""

    kind: str
    architecture: str
    metadata: Mapping[str, object]
    tensors: Mapping[str, HostTensor]
    source: str = "tiny.gguf"


def changed(
    checkpoint: Checkpoint,
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, HostTensor | None] | None = None,
    architecture: str | None = None,
) -> Changed:
    """`checkpoint` with values replaced, or taken out where None."""
    meta = {k: v for k, v in {**checkpoint.metadata, **(metadata or {})}.items() if v is not None}
    kept = {k: v for k, v in {**checkpoint.tensors, **(tensors or {})}.items() if v is not None}
    return Changed(checkpoint.kind, architecture or checkpoint.architecture, meta, kept)


def f32(values: Any) -> HostTensor:
    array = np.asarray(values, dtype=np.float32)
    rows = 1 if array.ndim == 1 else len(array)
    return HostTensor(F32, array.shape, array.view(np.uint8).reshape(rows, -1))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Checkpoint]:
    """(model name, "hf" | "gguf") → that tiny model, opened."""
    opened: dict[tuple[str, str], Checkpoint] = {}

    def get(name: str, kind: str) -> Checkpoint:
        if (name, kind) not in opened:
            root = tmp_path_factory.mktemp(name)
            path = tiny_models.build(name, root / "hf", seed=3)
            if kind == "gguf":
                path = tiny_models.to_gguf(path, root / "tiny.gguf")
            opened[name, kind] = open_checkpoint(path)
        return opened[name, kind]

    return get


def logits(model: LoadedModel, ids: tuple[int, ...] = (5, 200, 31, 7)) -> torch.Tensor:
    from headrace.ops.reference import ReferenceModel

    return ReferenceModel(model).logits([ids])[0]


# ---- the files themselves -----------------------------------------------------------------------


def test_missing_tensor_of_a_shard_is_named(tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    directory = tiny_models.build("llama", tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="50KB")
    index_file = sharded / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    assert len(set(index["weight_map"].values())) > 2
    load(open_checkpoint(sharded))  # whole, it loads

    name = "model.layers.1.mlp.down_proj.weight"
    shard = sharded / index["weight_map"].pop(name)
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard, metadata={"format": "pt"})
    index_file.write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"model\.layers\.1\.mlp\.down_proj\.weight.*missing"):
        load(open_checkpoint(sharded))


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_every_tensor_is_needed(files: Any, kind: str) -> None:
    checkpoint = files("gemma3", kind)
    for name in checkpoint.tensors:
        with pytest.raises(ModelFileError) as error:
            load(changed(checkpoint, tensors={name: None}))
        assert name in str(error.value)
        assert "missing" in str(error.value)


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_wrong_shape_is_named(files: Any, kind: str) -> None:
    checkpoint = files("qwen2", kind)
    for name, tensor in checkpoint.tensors.items():
        if name == "token_embd.weight":
            continue  # its rows define the vocabulary; its columns are tested below
        wrong = f32(np.zeros((*tensor.shape[:-1], tensor.shape[-1] + 1)))
        with pytest.raises(ModelFileError) as error:
            load(changed(checkpoint, tensors={name: wrong}))
        assert name in str(error.value)
        assert "shape" in str(error.value)


def test_wrong_embedding_width(files: Any) -> None:
    wrong = f32(np.zeros((tiny_models.VOCAB, 83)))
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has shape 283 × 83.*283 × 84"):
        load(changed(files("qwen2", "gguf"), tensors={"token_embd.weight": wrong}))


def test_quantised_vector_is_refused(files: Any) -> None:
    bad = HostTensor(Q8_0, (256,), np.zeros((1, Q8_0.row_bytes(256)), dtype=np.uint8))
    with pytest.raises(ModelFileError, match=r"output_norm\.weight is stored as Q8_0"):
        load(changed(files("llama-256", "gguf"), tensors={"output_norm.weight": bad}))


def test_unknown_architecture_is_named(files: Any) -> None:
    for kind in ("hf", "gguf"):
        with pytest.raises(ModelFileError, match=r'architecture "mamba9" is not supported.*llama'):
            load(changed(files("llama", kind), architecture="mamba9"))


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_unknown_extra_tensor_is_a_named_warning(
    files: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = files("llama", kind)
    with caplog.at_level(logging.WARNING):
        assert load(checkpoint).warnings == ()
        assert not caplog.records
        extra = {"blk.1.attn_output.weight.lora": f32([[1.0]])}
        model = load(changed(checkpoint, tensors=extra))
    assert "blk.1.attn_output.weight.lora" in caplog.text
    assert len(model.warnings) == 1
    torch.testing.assert_close(logits(model), logits(load(checkpoint)), rtol=0, atol=0)


# ---- tied and untied heads ----------------------------------------------------------------------


def test_tied_file_without_head_loads(files: Any) -> None:
    for kind, head in (("hf", "lm_head.weight"), ("gguf", "output.weight")):
        checkpoint = files("llama-tied", kind)
        assert head not in checkpoint.tensors
        model = load(checkpoint)
        assert model.config.tied_embeddings
        assert "lm_head" not in model.weights


def test_tied_file_that_repeats_its_head_gives_the_same_logits(files: Any) -> None:
    for kind, head, embedding in (
        ("hf", "lm_head.weight", "model.embed_tokens.weight"),
        ("gguf", "output.weight", "token_embd.weight"),
    ):
        checkpoint = files("llama-tied", kind)
        repeated = changed(checkpoint, tensors={head: checkpoint.tensors[embedding]})
        assert load(repeated).warnings == ()
        assert "lm_head" not in load(repeated).weights  # one copy serves both
        torch.testing.assert_close(logits(load(repeated)), logits(load(checkpoint)))


def test_head_that_differs_from_a_tied_embedding_counts(files: Any) -> None:
    for kind, head in (("hf", "lm_head.weight"), ("gguf", "output.weight")):
        checkpoint = files("llama-tied", kind)
        zeros = f32(np.zeros((tiny_models.VOCAB, 40)))
        model = load(changed(checkpoint, tensors={head: zeros}))
        assert not model.config.tied_embeddings
        assert logits(model).abs().max() == 0


def test_untied_huggingface_file_without_head_is_refused(files: Any) -> None:
    # Whoever initialises what is missing computes noise.
    with pytest.raises(ModelFileError, match=r"lm_head\.weight.*missing"):
        load(changed(files("llama", "hf"), tensors={"lm_head.weight": None}))


def test_gpt2_without_the_transformer_prefix(files: Any) -> None:
    # The original GPT-2 repository: no prefix, and mask buffers beside the weights.
    checkpoint = files("gpt2", "hf")
    bare = {name.removeprefix("transformer."): t for name, t in checkpoint.tensors.items()}
    bare["h.0.attn.bias"] = f32(np.ones((4, 4)))
    model = load(dataclasses.replace(changed(checkpoint), tensors=bare))
    assert model.warnings == ()
    torch.testing.assert_close(logits(model), logits(load(checkpoint)), rtol=0, atol=0)


# ---- rotary tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["foo", "linear", "dynamic", "yarn", "longrope", "mrope"])
def test_other_rope_scalings_are_refused_by_name(files: Any, kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4}
    for words in (
        {"rope_parameters": scaling},
        {"rope_parameters": None, "rope_scaling": scaling},
        {"rope_parameters": None, "rope_scaling": {"type": kind, "factor": 2.0}},
    ):
        with pytest.raises(ModelFileError, match=f'"{kind}"'):
            load(changed(files("llama", "hf"), words))
    with pytest.raises(ModelFileError, match=f'"{kind}"'):
        load(changed(files("llama", "gguf"), {"llama.rope.scaling.type": kind}))
    nested = {"full_attention": scaling, "sliding_attention": {"rope_type": "default"}}
    with pytest.raises(ModelFileError, match=f'"{kind}"'):
        load(changed(files("gemma3", "hf"), {"rope_parameters": nested}))


def test_llama3_table_differs_from_plain_and_old_and_new_words_agree(files: Any) -> None:
    checkpoint = files("llama3-rope", "hf")
    model = load(checkpoint)
    words = dict(checkpoint.metadata["rope_parameters"])
    old = {"rope_theta": words.pop("rope_theta"), "rope_scaling": words, "rope_parameters": None}
    plain = {"rope_theta": old["rope_theta"], "rope_parameters": None}
    assert load(changed(checkpoint, old)).config.rope == model.config.rope
    unscaled = load(changed(checkpoint, plain)).config.rope
    assert unscaled is not None
    assert model.config.rope is not None
    assert unscaled.frequencies[0] == model.config.rope.frequencies[0]
    assert unscaled.frequencies[-1] == 8 * model.config.rope.frequencies[-1]


def test_rope_freqs_tensor_is_applied(files: Any) -> None:
    checkpoint = files("llama3-rope", "gguf")
    assert "rope_freqs.weight" in checkpoint.tensors
    model = load(checkpoint)
    assert model.warnings == ()
    without = load(changed(checkpoint, tensors={"rope_freqs.weight": None}))
    ids = tuple(range(40))
    assert (logits(model, ids) - logits(without, ids)).abs().max() > 0.01


@pytest.mark.parametrize("factors", [[1.0] * 15, [0.0] * 16, [float("nan")] * 16, [-1.0] * 16])
def test_damaged_rope_factors_are_refused(files: Any, factors: list[float]) -> None:
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        load(changed(files("llama3-rope", "gguf"), tensors={"rope_freqs.weight": f32(factors)}))


def test_gemma3_old_and_new_words_agree(files: Any) -> None:
    checkpoint = files("gemma3", "hf")
    new = load(checkpoint).config
    old = {"rope_parameters": None, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
    for words in (old, {**old, "rope_theta": None, "rope_local_base_freq": None}):
        assert load(changed(checkpoint, words)).config == new
    other = load(changed(checkpoint, {**old, "rope_local_base_freq": 500.0})).config
    assert other.rope == new.rope
    assert other.local_rope != new.local_rope


def test_windows_without_layer_types(files: Any) -> None:
    # Files from before layer_types state a rule; transformers writes the list the rule gives.
    for name in ("gemma3", "qwen2-window"):
        checkpoint = files(name, "hf")
        listed = load(checkpoint).config.windows
        assert len(set(listed)) == 2
        assert load(changed(checkpoint, {"layer_types": None})).config.windows == listed
    every_other = {"layer_types": None, "sliding_window_pattern": 2}
    windows = load(changed(files("gemma3", "hf"), every_other)).config.windows
    assert windows == (19, None, 19, None, 19, None, 19)


def test_gguf_window_patterns(files: Any) -> None:
    checkpoint, key = files("gemma3", "gguf"), "gemma3.attention.sliding_window_pattern"
    assert load(checkpoint).config.windows == (19, 19, 19, 19, 19, None, 19)
    by_number = load(changed(checkpoint, {key: 3})).config.windows
    assert by_number == (19, 19, None, 19, 19, None, 19)
    flags = [True, False, True, True, True, True, False]
    by_flags = load(changed(checkpoint, {key: flags})).config.windows
    assert by_flags == (19, None, 19, 19, 19, 19, None)
    with pytest.raises(ModelFileError, match="list of 7 flags"):
        load(changed(checkpoint, {key: flags[:5]}))
    no_window = load(changed(checkpoint, {"gemma3.attention.sliding_window": None}))
    assert set(no_window.config.windows) == {None}


def test_gguf_rotary_base_of_window_layers(files: Any) -> None:
    checkpoint = files("gemma3", "gguf")
    config = load(checkpoint).config
    assert config.local_rope == load(files("gemma3", "hf")).config.local_rope
    key = {"gemma3.rope.freq_base_swa": 500.0}
    assert load(changed(checkpoint, key)).config.local_rope != config.local_rope


def test_gemma3_27b_scales_its_scores_differently() -> None:
    # GGUF files do not carry query_pre_attn_scalar (168 = 5376 / 32 for the 27B, else D).
    from headrace.models.family import TensorFacts
    from headrace.models.fields import Fields
    from headrace.models.gemma3 import config_from_gguf

    values: dict[str, object] = {
        "gemma3.block_count": 62,
        "gemma3.embedding_length": 5376,
        "gemma3.feed_forward_length": 21504,
        "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16,
        "gemma3.attention.key_length": 128,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.context_length": 131072,
    }
    facts = TensorFacts(262_208, frozenset())
    large = config_from_gguf(Fields(values, "27b.gguf", "gemma3."), facts)
    assert large.attention_scale == 168**-0.5
    smaller = {**values, "gemma3.block_count": 48}
    small = config_from_gguf(Fields(smaller, "12b.gguf", "gemma3."), facts)
    assert small.attention_scale == 128**-0.5


# ---- hyper-parameters ---------------------------------------------------------------------------

BAD_GGUF: list[tuple[str, object, str]] = [
    ("attention.head_count", 0, "expected an integer in 1"),
    ("attention.head_count", -3, "expected an integer in 1"),
    ("attention.head_count", 1 << 60, "expected an integer in 1"),
    ("attention.head_count", "nine", "expected an integer"),
    ("attention.head_count", True, "expected an integer"),
    ("attention.head_count", 9.0, "expected an integer"),
    ("attention.head_count", [9, 3, 9], "differs between layers"),
    ("attention.head_count_kv", 4, "does not divide the 9 query heads"),
    ("attention.key_length", 7, "even number"),
    ("attention.key_length", 100_000, "expected an integer in 2"),
    ("attention.value_length", 8, "expected 6 as keys"),
    ("attention.layer_norm_rms_epsilon", float("nan"), "expected a number"),
    ("attention.layer_norm_rms_epsilon", -1.0, "expected a number"),
    ("attention.layer_norm_rms_epsilon", None, "is missing"),
    ("block_count", None, "is missing"),
    ("block_count", 1 << 31, "expected an integer in 1"),
    ("context_length", 1 << 40, "expected an integer in 1"),
    ("embedding_length", 1 << 30, "expected an integer in 1"),
    ("feed_forward_length", 0, "expected an integer in 1"),
    ("rope.freq_base", 0.0, "expected a number"),
    ("rope.freq_base", float("inf"), "expected a number"),
    ("rope.dimension_count", 4, "expected the head dimension 6"),
    ("rope.scale_linear", 4.0, "linear"),
    ("expert_count", 8, "mixtures of experts"),
]


@pytest.mark.parametrize(("key", "value", "words"), BAD_GGUF)
def test_bad_gguf_hyper_parameter(files: Any, key: str, value: object, words: str) -> None:
    with pytest.raises(ModelFileError) as error:
        load(changed(files("llama", "gguf"), {f"llama.{key}": value}))
    message = str(error.value)
    assert message.startswith(f"tiny.gguf: llama.{key} ")
    assert words in message
    assert message.count("\n") == 0


def test_hidden_size_without_head_width_must_divide(files: Any) -> None:
    words = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    with pytest.raises(ModelFileError, match="does not divide the hidden size 54"):
        load(changed(files("llama", "gguf"), {**words, "llama.attention.key_length": None}))


BAD_HF: list[tuple[str, str, object]] = [
    ("llama", "hidden_act", "relu"),
    ("llama", "mlp_bias", True),
    ("llama", "num_hidden_layers", 3.5),
    ("llama", "rms_norm_eps", 10**400),
    ("llama", "vocab_size", None),
    ("llama", "tie_word_embeddings", "yes"),
    ("llama", "quantization_config", {"quant_method": "awq"}),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "rope_parameters", [1, 2]),
    ("mistral", "sliding_window", 0),
    ("qwen2-window", "layer_types", ["full_attention"] * 3),
    ("qwen2-window", "layer_types", ["full_attention"] * 3 + ["linear_attention"]),
    ("gemma3", "hidden_activation", "gelu"),
    ("gemma3", "attn_logit_softcapping", 50.0),
    ("gemma3", "use_bidirectional_attention", True),
    ("gemma3", "query_pre_attn_scalar", 0),
    ("gpt2", "activation_function", "relu"),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "n_head", 5),
    ("gpt2", "n_embd", None),
]


@pytest.mark.parametrize(("model", "key", "value"), BAD_HF)
def test_bad_huggingface_hyper_parameter(files: Any, model: str, key: str, value: object) -> None:
    with pytest.raises(ModelFileError) as error:
        load(changed(files(model, "hf"), {key: value}))
    assert key in str(error.value)
    assert str(error.value).count("\n") == 0


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=60),
    st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "x"]), st.integers(), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_metadata_loads_or_is_refused_in_one_sentence(files: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(tiny_models.FAMILIES))
    checkpoint = files(name, data.draw(st.sampled_from(["hf", "gguf"])))
    keys = sorted(k for k in checkpoint.metadata if not k.startswith(("tokenizer.", "general.")))
    odd = data.draw(st.dictionaries(st.sampled_from(keys), ODD, min_size=1, max_size=3))
    message = "tiny.gguf: loaded"
    try:
        load(changed(checkpoint, odd))
    except ModelFileError as error:
        message = str(error)
    assert message.startswith("tiny.gguf: ")
    assert len(message) < 500
