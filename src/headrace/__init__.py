"""Headrace: LLM inference that proves itself and knows its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engine.llm import LLM
    from headrace.engine.params import SamplingParams
    from headrace.engine.pooling import PoolingParams
    from headrace.structured.spec import StructuredOutputs

__version__ = "0.1.0"
__all__ = ["LLM", "PoolingParams", "SamplingParams", "StructuredOutputs", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that the command line's --help costs no engine import.
    if name == "LLM":
        from headrace.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from headrace.engine.params import SamplingParams

        return SamplingParams
    if name == "PoolingParams":
        from headrace.engine.pooling import PoolingParams

        return PoolingParams
    if name == "StructuredOutputs":
        from headrace.structured.spec import StructuredOutputs

        return StructuredOutputs
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
