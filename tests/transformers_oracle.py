"""`transformers` as oracle, in real float64.

Its models ask for float32 in places whatever their own type (norms, softmax, rotary tables). Under
`Float64Mode` every such request is answered with float64, so that two right implementations agree
to about 1e-13 instead of 1e-6, and a wrong one has nowhere to hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM


class Float64Mode(TorchFunctionMode):
    """Inside it, torch.float32 means torch.float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        changed = {k: _widen(v) for k, v in (kwargs or {}).items()}
        return func(*map(_widen, args), **changed)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def logits(
    directory: Path, sequences: Sequence[Sequence[int]], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Logits [S, V] of each sequence, run alone, in `dtype` (torch.float64 or torch.float32)."""
    return _run(directory, sequences, dtype, lambda model, ids: model(ids).logits)


def final_hidden(
    directory: Path, sequences: Sequence[Sequence[int]], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Hidden values after the final norm [S, E] of each sequence, as `logits`."""
    return _run(
        directory, sequences, dtype, lambda model, ids: model.base_model(ids).last_hidden_state
    )


def _run(
    directory: Path,
    sequences: Sequence[Sequence[int]],
    dtype: torch.dtype,
    output: Callable[[Any, Tensor], Tensor],
) -> list[Tensor]:
    if dtype is torch.float64:
        with Float64Mode():
            return _outputs(directory, sequences, dtype, output)
    return _outputs(directory, sequences, dtype, output)


def _outputs(
    directory: Path,
    sequences: Sequence[Sequence[int]],
    dtype: torch.dtype,
    output: Callable[[Any, Tensor], Tensor],
) -> list[Tensor]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation="eager"
        )
        model.eval()
        for name, buffer in model.named_buffers():
            if name.endswith("embed_scale"):  # Gemma's √E is a float32 number in the real models
                buffer.fill_(float(np.float32(buffer.item())))
        with torch.no_grad():
            results = [output(model, torch.tensor([list(ids)]))[0] for ids in sequences]
    finally:
        torch.set_default_dtype(before)
    assert all(r.dtype is dtype for r in results)
    return results
