"""apply_op: one reference op on numpy arrays, so that another interpreter's op can be checked on
its own inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.ops.reference import functions as f
from headrace.quant.dequantize import dequantize
from headrace.quant.tensor import HostTensor

Inputs = Mapping[str, npt.NDArray[Any] | HostTensor]


def apply_op(
    name: str,
    inputs: Inputs,
    attributes: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float64,
) -> npt.NDArray[Any]:
    """One op on `inputs`, computed in `dtype` → array of the same type.

    name and what it takes (inputs; attributes):
        embed(weight, index)   rms_norm(x, weight; eps, groups)   layer_norm(x, weight, bias; eps)
        linear(x, weight, bias)   rope(x, positions; heads, spec)   kv_write(x; kv_format)
        attend(q, k, v, q_positions, k_positions; heads, kv_heads, scale, window, soft_cap)
        gated(gate, up; activation)   gelu(x)   add(a, b)   scale(x; factor)   soft_cap(x; cap)
        rows(x, index)
    inputs: float arrays [rows, columns] (vectors [N], integer arrays [rows]) by parameter name;
    weights may be HostTensors in any number format. attend takes one request. Shapes must fit
    (they come from a program, whose ops are checked). Raises KeyError for an unknown op.
    """
    tensors = {key: _tensor(value, dtype) for key, value in inputs.items()}
    result: npt.NDArray[Any] = _FUNCTIONS[name](**tensors, **(attributes or {})).numpy()
    return result


def _tensor(value: npt.NDArray[Any] | HostTensor, dtype: torch.dtype) -> Tensor:
    array = dequantize(value) if isinstance(value, HostTensor) else value
    integral = np.issubdtype(array.dtype, np.integer)
    return torch.from_numpy(np.array(array)).to(torch.int64 if integral else dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x @ weight.T
    return y if bias is None else y + bias


def _add(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def _embed(weight: Tensor, index: Tensor) -> Tensor:
    return weight[index]


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "embed": _embed,
    "rms_norm": f.rms_norm,
    "layer_norm": f.layer_norm,
    "linear": _linear,
    "rope": f.rope,
    "kv_write": f.round_to,
    "attend": f.attend,
    "gated": f.gated,
    "gelu": f.gelu,
    "add": _add,
    "scale": f.scale,
    "soft_cap": f.capped,
    "rows": _rows,
}
