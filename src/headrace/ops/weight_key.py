"""Keys of what is made from a model's weights: everything that its bytes follow from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np

from headrace.native import core
from headrace.ops.numerics import NUMERICS_ID
from headrace.ops.packed import NATIVE_FORMATS
from headrace.ops.program import Program
from headrace.ops.quantize import QUANTISERS
from headrace.ops.record import record
from headrace.quant.formats import FORMATS
from headrace.quant.tensor import HostTensor, PendingTensor

_SAMPLE_BYTES = 4096


def weights_key(identity: Iterable[str], weights: Mapping[str, HostTensor]) -> str:
    """What packed matrices of `weights` follow from, as 32 hexadecimal digits.

    identity: what tells the files from others (size and time of change). Of each tensor count its
    name, format, shape and row order, the first, middle and last 4 KiB of its stored bytes, and,
    where it is quantised at load, the format before. To read all bytes would cost as much as
    packing them; so a change in place that keeps the file's size and time of change must spare
    all samples to go unnoticed. The packing and the quantisers count by what they make of fixed
    bytes (`_fingerprint`).
    """
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(json.dumps([str(part) for part in parts]).encode())

    add("packed weights", NUMERICS_ID, _fingerprint(), *identity)
    for name, tensor in sorted(weights.items()):
        stored = tensor.source if isinstance(tensor, PendingTensor) else tensor
        add(name, tensor.format.name, stored.format.name, tensor.shape)
        order = tensor.row_order
        digest.update(b"-" if order is None else order.tobytes())
        flat = stored.data.reshape(-1)
        for start in (0, flat.size // 2, max(0, flat.size - _SAMPLE_BYTES)):
            digest.update(flat[start : start + _SAMPLE_BYTES].tobytes())
    return digest.hexdigest()[:32]


def content_key(program: Program, threads: int) -> str:
    """What a step of `program` computes follows from this (and from NUMERICS_ID), as 32 hexadecimal
    digits: the program as recorded, with all its constants, and of each tensor the name, format,
    shape, row order and every stored byte. So the same model has the same key wherever it lies, and
    one changed in place has another. Reads all weights once: 0.03 s for 1.1 GB in the system's
    cache on 2 cores, else the time to read the file.
    """
    native, digest = core(), hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(json.dumps([str(part) for part in parts]).encode())

    add("model", *record(program).segments)
    for name, tensor in sorted(program.weights.items()):
        stored = tensor.source if isinstance(tensor, PendingTensor) else tensor
        made = "as stored" if stored is tensor else _fingerprint()
        add(name, tensor.format.name, stored.format.name, tensor.shape, made)
        for array in (stored.data, tensor.row_order):
            flat = np.ascontiguousarray(array).reshape(-1) if array is not None else np.zeros(0)
            add(flat.nbytes, native.checksum(flat.view(np.uint8), threads))
    return digest.hexdigest()[:32]


@cache
def _fingerprint() -> str:
    """Changes when the layout of packed weights or the result of a quantiser does."""
    native, digest = core(), hashlib.sha256()
    floats = (np.arange(2 * 512, dtype=np.float32) * 7919 % 1009 - 504).reshape(2, 512)
    raw = floats.view(np.uint8)
    for name, number in NATIVE_FORMATS.items():
        some = np.resize(raw.reshape(-1), (2, FORMATS[name].row_bytes(512)))
        packed = native.pack(number, np.ascontiguousarray(some), 2, 512)
        digest.update(memoryview(packed.data))
    for target in QUANTISERS:
        made = native.quantize(NATIVE_FORMATS["F32"], raw, 512, NATIVE_FORMATS[target.name])
        digest.update(memoryview(made))
    return digest.hexdigest()
