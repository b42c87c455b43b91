"""What `headrace models show` says of a model: facts of its files, as one JSON-ready dictionary.

Works for any file that opens; for a model whose architecture is not supported it tells what the
file itself says, and why it can not run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.formats.chat_template import load_chat_template
from headrace.formats.tensors import FileCheckpoint, StoredTensor
from headrace.formats.tokenizer_load import load_tokenizer
from headrace.models.config import ModelConfig
from headrace.models.load import load
from headrace.models.quantize import Quantized
from headrace.models.quantize import quantize as quantize_weights
from headrace.ops.kv import KVFormat
from headrace.quant.formats import NumberFormat

#: Group -> parts of tensor names (GGUF and Hugging Face) that belong to it; the first match counts.
GROUPS: dict[str, tuple[str, ...]] = {
    "norms": ("norm", "ln_"),
    "embedding": ("token_embd", "embed_tokens", "position_embd", "wte", "wpe"),
    "attention": ("attn", "self_attn", "c_attn"),
    "mlp": ("ffn", "mlp"),
    "output": ("lm_head", "output"),
}


def model_facts(
    checkpoint: FileCheckpoint, *, quantize: NumberFormat | None = None
) -> dict[str, Any]:
    """Everything `show` prints. Sizes in bytes; kv in bytes per position, by number format.
    quantize: tell what quantising to it at load would do."""
    stored = [checkpoint.tensors.describe(name) for name in checkpoint.tensors]
    facts: dict[str, Any] = {
        "source": checkpoint.source,
        "kind": checkpoint.kind,
        "architecture": checkpoint.architecture,
        "name": _text(checkpoint, "general.name", "_name_or_path"),
        "licence": _text(checkpoint, "general.license", "license"),
        "files": [{"path": str(f), "bytes": f.stat().st_size} for f in checkpoint.files],
        **_shapes(checkpoint, quantize),
        "parameters": sum(math.prod(t.shape) for t in stored),
        "size": _size(stored, checkpoint.files),
        "tensors": _tensor_groups(stored),
        "tokenizer": _attempt(lambda: _tokenizer(checkpoint)),
    }
    return facts


def _shapes(checkpoint: FileCheckpoint, wanted: NumberFormat | None) -> dict[str, Any]:
    try:
        model = load(checkpoint)
    except HeadraceError as error:
        return {"runs": False, "reason": str(error)}
    config = model.config
    facts = {} if wanted is None else {"quantize": _quantized(quantize_weights(model, wanted))}
    return facts | {
        "runs": True,
        "context": config.max_context,
        "shapes": {
            "layers": config.num_layers,
            "hidden": config.hidden_size,
            "intermediate": config.intermediate_size,
            "query_heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocabulary_rows": config.vocab_size,
            "tied_embeddings": config.tied_embeddings,
        },
        "kv": _kv_groups(config),
    }


def _quantized(done: Quantized) -> dict[str, Any]:
    return {
        "text": done.describe(),
        "formats": dict(Counter(choice.target.name for choice in done.choices).most_common()),
        "kept": done.kept,
        "stored_bytes": done.stored_bytes,
        "result_bytes": done.result_bytes,
    }


def _kv_groups(config: ModelConfig) -> list[dict[str, Any]]:
    return [
        {
            "group": group.name,
            "layers": len(group.layers),
            "window": group.window,
            "bytes_per_token": {f.value: group.bytes_per_position(f) for f in KVFormat},
        }
        for group in config.kv_groups()
    ]


def _size(stored: list[StoredTensor], files: Iterable[Path]) -> dict[str, int | None]:
    """naive: parameters × bits of the codes. tensors: with scales and minima. files: on disk."""
    return {
        "naive_bytes": _total(stored, _naive_bytes),
        "tensor_bytes": _total(stored, _real_bytes),
        "file_bytes": sum(f.stat().st_size for f in files),
    }


def _tensor_groups(stored: list[StoredTensor]) -> list[dict[str, Any]]:
    members: dict[str, list[StoredTensor]] = {}
    for tensor in stored:
        members.setdefault(_group_of(tensor.name), []).append(tensor)
    rows = []
    for group in (*GROUPS, "other"):
        tensors = members.get(group)
        if not tensors:
            continue
        parameters = sum(math.prod(t.shape) for t in tensors)
        real = _total(tensors, _real_bytes)
        rows.append(
            {
                "group": group,
                "tensors": len(tensors),
                "formats": dict(Counter(t.format_name for t in tensors).most_common()),
                "parameters": parameters,
                "naive_bytes": _total(tensors, _naive_bytes),
                "tensor_bytes": real,
                "bits_per_weight": None if real is None else round(8 * real / parameters, 3),
            }
        )
    return rows


def _group_of(name: str) -> str:
    return next((g for g, parts in GROUPS.items() if any(p in name for p in parts)), "other")


def _naive_bytes(tensor: StoredTensor) -> int | None:
    if tensor.format is None:
        return None
    return -(-math.prod(tensor.shape) * tensor.format.naive_bits // 8)


def _real_bytes(tensor: StoredTensor) -> int | None:
    return None if tensor.data is None else len(tensor.data)


def _total(tensors: list[StoredTensor], size: Callable[[StoredTensor], int | None]) -> int | None:
    """The sum, or None when a tensor's size is not known."""
    sizes = [size(t) for t in tensors]
    return sum(s for s in sizes if s is not None) if None not in sizes else None


def _tokenizer(checkpoint: FileCheckpoint) -> dict[str, Any]:
    tokenizer = load_tokenizer(checkpoint)
    template = _attempt(lambda: {"origin": load_chat_template(checkpoint, tokenizer).origin})
    return {
        "vocabulary": tokenizer.name,
        "ids": tokenizer.num_ids,
        "bos": _named(tokenizer.bos_id, tokenizer.token_text),
        "add_bos": tokenizer.add_bos,
        "eos": [_named(i, tokenizer.token_text) for i in tokenizer.eos_ids],
        "chat_template": template.get("origin"),
    }


def _named(token_id: int | None, text: Callable[[int], str]) -> dict[str, Any] | None:
    return None if token_id is None else {"id": token_id, "text": text(token_id)}


def _attempt(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return make()
    except HeadraceError as error:
        return {"error": str(error)}


def _text(checkpoint: FileCheckpoint, gguf_key: str, hf_key: str) -> str | None:
    value = checkpoint.metadata.get(gguf_key if checkpoint.kind == "gguf" else hf_key)
    return value if isinstance(value, str) and value else None
