"""Attention computed in several ways on the same numbers: what one cell of the experiment runs.

    naive    scores and probabilities as matrices [B, H, S, S]
    tiled    ours: the native kernel, online softmax over tiles of the paged KV memory
    SDPA     torch's scaled_dot_product_attention

Causal, one layer, as many KV heads as query heads. A cell runs in a process of its own: memory is
counted there, and threads and libraries are warm before anything is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.engine.config import Machine
from headrace.engine.sizing import ceil_div
from headrace.lab.parts.memory import FreshProcesses, peak_of
from headrace.native import core
from headrace.ops.kv import KVFormat
from headrace.ops.lower import NATIVE_KV_FORMATS

Floats = npt.NDArray[np.float32]
_BLOCK = 16
#: Rows of queries that are compared with float64, evenly spread, the last one among them.
_MOST_ROWS = 256
#: Calls are timed for so many seconds, or so often.
_LEAST_S, _MOST_REPETITIONS = 0.1, 15
#: A cell that would take more than this share of the free memory is left out.
_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute. bytes: of a number of q, k, v and the result, or of K and V (ours)."""

    name: str
    kind: str
    format: KVFormat

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.format is KVFormat.F32 else torch.bfloat16


@dataclass(frozen=True, slots=True)
class Problem:
    """B sequences of S positions, H heads of D."""

    length: int
    heads: int
    dim: int = 64
    batch: int = 1

    @property
    def scale(self) -> float:
        return float(np.float32(self.dim**-0.5))

    def matrix_bytes(self, element_bytes: int) -> int:
        """Of the scores."""
        return self.batch * self.heads * self.length**2 * element_bytes

    def vectors_bytes(self, element_bytes: int) -> int:
        """Of q, or k, or v, or the result."""
        return self.batch * self.heads * self.length * self.dim * element_bytes

    def peak_bytes(self, way: Way) -> int:
        """What a call must hold beside its inputs: its result, and where scores are materialised,
        these, their probabilities and the mask. Ours has float32 results."""
        element = way.format.element_bytes
        if way.kind == "naive":
            return 2 * self.matrix_bytes(element) + self.length**2 + self.vectors_bytes(element)
        return self.vectors_bytes(4 if way.kind == "tiled" else element)

    def input_bytes(self, way: Way) -> int:
        element = way.format.element_bytes
        return 2 * self.vectors_bytes(element) + self.vectors_bytes(
            4 if way.kind == "tiled" else element
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """seconds: of every repetition. peak_bytes: beside the inputs. error: largest |Δ| from float64,
    relative to the largest |result|."""

    seconds: list[float]
    peak_bytes: int
    error: float


def run_cell(fresh: FreshProcesses, way: Way, problem: Problem, *, threads: int) -> Cell | None:
    """In a fresh process; None where memory is too short for it."""
    free = Machine.probe(os.environ).free_bytes
    needed = problem.peak_bytes(way) + problem.input_bytes(way)
    if free is not None and needed > _MEMORY_SHARE * free:
        return None
    return fresh.call(measure, way, problem, threads)


def measure(way: Way, problem: Problem, threads: int) -> Cell:
    """What a fresh process does."""
    torch.set_num_threads(threads)
    small = Problem(64, problem.heads, problem.dim, problem.batch)
    _prepare(way, small, inputs(small), threads)()
    q, k, v = inputs(problem)
    call = _prepare(way, problem, (q, k, v), threads)
    peak, _ = peak_of(call)
    seconds: list[float] = []
    result: object = None
    while sum(seconds) < _LEAST_S and len(seconds) < _MOST_REPETITIONS:
        del result
        begin = perf_counter()
        result = call()
        seconds.append(perf_counter() - begin)
    return Cell(seconds, peak.peak, relative_error(problem, (q, k, v), _plain(problem, result)))


def inputs(problem: Problem, seed: int = 1) -> tuple[Floats, Floats, Floats]:
    """q, k, v, float32 [B, S, H, D]: normal, queries twice as large so that some positions win."""
    random = np.random.default_rng(seed)
    shape = (problem.batch, problem.length, problem.heads, problem.dim)
    q, k, v = (random.standard_normal(shape, np.float32) for _ in range(3))
    return 2 * q, k, v


def attention(
    way: Way, problem: Problem, qkv: tuple[Floats, Floats, Floats], threads: int
) -> Floats:
    """The result, float32 [B, S, H, D]."""
    return _plain(problem, _prepare(way, problem, qkv, threads)())


def relative_error(problem: Problem, qkv: tuple[Floats, Floats, Floats], result: Floats) -> float:
    """Largest |result − float64's| ÷ largest |float64's|, over some rows of all sequences."""
    q, k, v = (torch.from_numpy(x).double().permute(0, 2, 1, 3) for x in qkv)
    step = max(problem.length // _MOST_ROWS, 1)
    rows = torch.arange(problem.length - 1, -1, -step)
    scores = (q[:, :, rows] @ k.transpose(-1, -2)) * problem.scale
    hidden = torch.arange(problem.length)[None, :] > rows[:, None]
    expected = torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v
    got = torch.from_numpy(result).permute(0, 2, 1, 3)[:, :, rows].double()
    return float((got - expected).abs().max() / expected.abs().max())


def _plain(problem: Problem, result: object) -> Floats:
    if isinstance(result, Tensor):
        result = result.permute(0, 2, 1, 3).float().contiguous().numpy()
    assert isinstance(result, np.ndarray)
    return result.reshape(problem.batch, problem.length, problem.heads, problem.dim)


# ---- the ways -----------------------------------------------------------------------------------


def _prepare(
    way: Way, problem: Problem, qkv: tuple[Floats, Floats, Floats], threads: int
) -> Callable[[], object]:
    """A call that computes attention on inputs that are in place."""
    if way.kind == "tiled":
        return _tiled(way, problem, qkv, threads)
    q, k, v = (torch.from_numpy(x).permute(0, 2, 1, 3).to(way.dtype).contiguous() for x in qkv)
    if way.kind == "naive":
        return lambda: naive(q, k, v, problem.scale)
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=problem.scale
    )


def naive(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """As it stands in textbooks; q, k, v [B, H, S, D]."""
    length = q.shape[-2]
    scores = (q @ k.transpose(-1, -2)).mul_(scale)
    hidden = torch.ones(length, length, dtype=torch.bool).triu_(1)
    probabilities = torch.softmax(scores.masked_fill_(hidden, -math.inf), -1)
    return probabilities @ v


def _tiled(
    way: Way, problem: Problem, qkv: tuple[Floats, Floats, Floats], threads: int
) -> Callable[[], object]:
    """Keys and values in blocks, as an engine keeps them: that is the input."""
    ops = core().ops
    batch, length = problem.batch, problem.length
    columns = ceil_div(length, _BLOCK)
    blocks = batch * columns
    memory = np.zeros(
        2 * blocks * _BLOCK * problem.heads * problem.dim * way.format.element_bytes, np.uint8
    )
    kv = ops.KV(
        memory, NATIVE_KV_FORMATS[way.format], 1, blocks, _BLOCK, problem.heads, problem.dim,
        problem.dim,
    )  # fmt: skip
    tables = np.arange(blocks, dtype=np.int32).reshape(batch, columns)
    at = np.arange(length, dtype=np.int32)
    slots = (tables[:, at // _BLOCK] * _BLOCK + at % _BLOCK).reshape(-1).astype(np.int32)
    q, k, v = (x.reshape(batch * length, -1) for x in qkv)
    ops.kv_write(kv, 0, k, v, slots, threads=threads)
    positions = np.tile(at, batch)
    spans = np.arange(0, batch * length + 1, length, dtype=np.int32)
    return lambda: ops.attend(
        kv, 0, q, positions, spans, tables, problem.heads, problem.scale, threads=threads
    )
