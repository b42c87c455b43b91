"""Tiny random models of every family, as files: what tests of all rooms run on.

`build(name, directory)` writes a Hugging Face directory with `transformers`' own save_pretrained
(and a byte-level tokenizer); `to_gguf(directory, path)` writes the same model as a GGUF file, with
the tensor names and reorderings of llama.cpp's converter. Sizes are awkward on purpose: head
counts and dimensions that are no powers of two, K that is no multiple of 32, vocabularies larger
than the tokenizer, windows shorter than a test's sequences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: Ids of the tokenizer: 256 bytes, then these.
BOS, EOS = 256, 257
VOCAB = 283

_COMMON: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _sizes(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return _COMMON | {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 2048,
    }


#: name → (transformers configuration class, its arguments).
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _sizes(54, 88, 3, 9, 3)),
    "llama-tied": ("LlamaConfig", _sizes(40, 72, 2, 2, 1) | {"tie_word_embeddings": True}),
    "llama-mha": ("LlamaConfig", _sizes(60, 100, 2, 3, 3) | {"head_dim": 14}),
    "llama3-rope": (
        "LlamaConfig",
        _sizes(64, 96, 2, 4, 2) | {"head_dim": 32, "rope_parameters": _LLAMA3},
    ),
    "llama-bias": ("LlamaConfig", _sizes(48, 80, 2, 4, 2) | {"attention_bias": True}),
    # Rows that every block format can hold: 256 divides all inputs of matrices.
    "llama-256": ("LlamaConfig", _sizes(256, 512, 2, 4, 2)),
    "mistral": ("MistralConfig", _sizes(56, 72, 3, 7, 1) | {"sliding_window": 21}),
    "mistral-full": ("MistralConfig", _sizes(56, 72, 2, 7, 7) | {"sliding_window": None}),
    "qwen2": ("Qwen2Config", _sizes(84, 96, 3, 14, 2) | {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2Config",
        _sizes(48, 64, 4, 6, 2)
        | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3Config", _sizes(54, 70, 3, 6, 3) | {"head_dim": 24}),
    "gemma3": (
        "Gemma3TextConfig",
        _sizes(44, 76, 7, 4, 1)
        | {
            "head_dim": 22,
            "sliding_window": 19,
            "query_pre_attn_scalar": 22,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "gemma3-capped": (
        "Gemma3TextConfig",
        _sizes(48, 64, 3, 3, 1)
        | {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 13,
            "final_logit_softcapping": 3.0,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt2": (
        "GPT2Config",
        _COMMON | {"n_embd": 42, "n_layer": 3, "n_head": 3, "n_positions": 512, "n_inner": 100},
    ),
    "gpt2-untied": (
        "GPT2Config",
        _COMMON
        | {"n_embd": 40, "n_layer": 2, "n_head": 5, "n_positions": 512}
        | {"tie_word_embeddings": False},
    ),
}

#: One model per architecture, for tests that need breadth more than depth.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt2")


def build(name: str, directory: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """Writes model `name` of MODELS with random weights of `seed` into `directory`; returns it."""
    import torch
    import transformers

    kind, arguments = MODELS[name]
    config = getattr(transformers, kind)(**json.loads(json.dumps(arguments)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        _randomise(model)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def _randomise(model: Any) -> None:
    """Weights large enough that every part of the model shows in the logits."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim > 1:
                # Not "/ √K" for the embedding: its rows are looked up, not summed over.
                fan_in = 1 if "embed" in name or "wte" in name or "wpe" in name else noise.shape[1]
                parameter.copy_(noise * 1.2 / fan_in**0.5)
            elif "bias" in name:
                parameter.copy_(noise * 0.3)
            else:
                # Multiples of 2⁻¹⁰: Gemma's norms, stored without their 1, then lose no bit of it.
                parameter.add_((noise * 0.2 * 1024).round() / 1024)


def save_tokenizer(directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json: byte-level, no merges, <s> and </s>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    ids = {character: i for i, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(words))


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte 0 … 255 (bytes that print stand for themselves)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + hidden.index(b)) for b in range(256)]


def to_gguf(directory: Path, path: Path, matrix_format: str = "F32") -> Path:
    """Writes the Hugging Face model in `directory` as GGUF file `path`; returns it.

    matrix_format: number format of the matrices ("F32", "F16", "BF16", "Q8_0", "Q4_0", … as far as
    the `gguf` package quantises); vectors are F32.
    """
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text())
    arch = _GGUF_NAMES[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    _write_metadata(writer, arch, config)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], layers)
    quantised = gguf.GGMLQuantizationType[matrix_format]
    for name, stored in load_file(directory / "model.safetensors").items():
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert to is not None, name
        values = _reordered(arch, config, name, stored.astype(np.float32))
        if values.ndim == 1:
            writer.add_tensor(to, values)
        else:
            data = gguf.quants.quantize(values, quantised)
            writer.add_tensor(to, data, raw_dtype=quantised)
    factors = _rope_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_GGUF_NAMES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
}


def _write_metadata(writer: Any, arch: str, config: dict[str, Any]) -> None:
    def get(*keys: str) -> Any:
        return next(config[k] for k in keys if config.get(k) is not None)

    hidden, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    writer.add_context_length(get("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(hidden)
    writer.add_block_count(get("num_hidden_layers", "n_layer"))
    stated = config.get("intermediate_size") or config.get("n_inner")
    writer.add_feed_forward_length(stated or 4 * hidden)
    writer.add_head_count(heads)
    if arch == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        rope = config["rope_parameters"]
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_key_length(config["head_dim"] if "head_dim" in config else hidden // heads)
        writer.add_value_length(config["head_dim"] if "head_dim" in config else hidden // heads)
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if config["model_type"] in ("gemma3_text", "mistral") and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    specials = ["<s>", "</s>", *(f"<unused{i}>" for i in range(config["vocab_size"] - 258))]
    writer.add_token_list([*byte_characters(), *specials])
    writer.add_token_types([1] * 256 + [3, 3] + [5] * (len(specials) - 2))
    writer.add_token_merges([])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)


def _reordered(arch: str, config: dict[str, Any], name: str, values: Any) -> Any:
    """The converter's changes: llama's Q/K rows, Gemma's norms, GPT-2's transposed matrices."""
    if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
        key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
        halves = values.reshape(config[key], 2, len(values) // config[key] // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    if arch == "gemma3" and name.endswith("norm.weight"):
        return values + np.float32(1)
    if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return np.ascontiguousarray(values.T)
    return values


def _rope_factors(config: dict[str, Any]) -> Any:
    """What divides the rotary frequencies of a llama3-scaled model, float32 [D / 2]."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") != "llama3":
        return None
    dim = config["head_dim"]
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    context, low, high = (
        rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    smooth = (context / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    long_waves = np.where(wavelengths > context / low, rope["factor"], between)
    return np.where(wavelengths < context / high, 1.0, long_waves).astype(np.float32)
