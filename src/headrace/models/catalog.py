"""Which architecture file serves which name. The one place to add a line for a new model."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.models import gemma3, gpt2, llama, qwen2, qwen3
from headrace.models.family import Family

#: GGUF general.architecture → family.
GGUF_ARCHITECTURES: Mapping[str, Family] = {
    "llama": llama.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "gemma3": gemma3.FAMILY,
    "gpt2": gpt2.FAMILY,
}

#: Hugging Face model_type → family.
HF_MODEL_TYPES: Mapping[str, Family] = {
    "llama": llama.FAMILY,
    "mistral": llama.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "gemma3_text": gemma3.FAMILY,
    "gpt2": gpt2.FAMILY,
}
