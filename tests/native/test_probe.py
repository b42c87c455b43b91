"""The probe's loops do the work they claim: what they add up is checked, never how fast."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.native import _core

MIB = 1 << 20


def levels() -> list[str]:
    return list(_core.available_isas())


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("workers", [1, 2])
def test_int8_sums_are_the_products_times_the_operations_counted(isa: str, workers: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 16, 64, dtype=np.uint8)
    y = rng.integers(-127, 128, 64).astype(np.int8)
    operations, _, sums = _core.Probe(2, isa).compute(
        "int8", x, y.view(np.uint8), workers, rounds=37
    )
    dots = (x.astype(np.int64) * y).reshape(16, 4).sum(1)
    # Two operations a product, 64 products a time; sums are those of one worker.
    times = operations / (2 * 64 * workers)
    np.testing.assert_array_equal(sums.view(np.int32), dots * times)
    assert times >= 37


@pytest.mark.parametrize("isa", levels())
def test_f32_sums_are_the_products_times_the_operations_counted(isa: str) -> None:
    x = np.arange(1, 17, dtype=np.float32)
    y = np.where(np.arange(16) % 2, 3, -5).astype(np.float32)
    operations, _, sums = _core.Probe(1, isa).compute(
        "f32", x.view(np.uint8), y.view(np.uint8), rounds=100
    )
    np.testing.assert_array_equal(sums.view(np.float32), x * y * (operations / 32))


@pytest.mark.parametrize("isa", levels())
def test_bf16_sums_are_the_products_times_the_operations_counted(isa: str) -> None:
    x, y = np.arange(1, 33, dtype=np.float32), np.arange(40, 8, -1, dtype=np.float32)
    as_bf16 = [(v.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8) for v in (x, y)]
    operations, _, sums = _core.Probe(1, isa).compute("bf16", *as_bf16, rounds=100)
    dots = (x * y).reshape(16, 2).sum(1)
    np.testing.assert_array_equal(sums.view(np.float32), dots * (operations / 64))


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize(("threads", "workers"), [(1, 1), (2, 2), (3, 2)])
def test_reading_visits_every_byte_once(isa: str, threads: int, workers: int) -> None:
    num_bytes, _, sums = _core.Probe(threads, isa, 3 * MIB).read(workers)
    words = np.arange(3 * MIB // 4, dtype=np.uint64) * 2654435761 % 2**32
    assert num_bytes == 3 * MIB
    np.testing.assert_array_equal(sums, words.reshape(-1, 16).sum(0) % 2**32)


def test_bursts_last_about_as_long_as_asked_and_count_all_workers() -> None:
    operands = np.ones(64, np.uint8)
    probe = _core.Probe(2, None, MIB)
    operations, seconds, _ = probe.compute("int8", operands, operands, seconds=0.01)
    assert seconds >= 0.01
    assert operations > 0
    num_bytes, seconds, _ = probe.read(2, 0.01)
    assert seconds >= 0.01
    assert num_bytes % MIB == 0
    assert num_bytes > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, None, MIB), "num_threads=0"),
        ((1, "sse2", MIB), "isa='sse2'"),
        ((1, None, 0), "buffer_bytes=0"),
        ((1, None, MIB + 64), "not a positive multiple of 1048576"),
    ],
)
def test_a_bad_probe_is_refused(arguments: tuple[int, str | None, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Probe(*arguments)


def test_a_bad_burst_is_refused() -> None:
    probe, ok = _core.Probe(2), np.ones(64, np.uint8)
    for bad, message in (
        (lambda: probe.compute("int4", ok, ok), "format='int4'"),
        (lambda: probe.compute("int8", ok, ok, 3), "workers=3 is not in 1 … 2"),
        (lambda: probe.compute("int8", ok, ok, seconds=float("nan")), "seconds="),
        (lambda: probe.compute("int8", ok, ok, rounds=-1), "rounds=-1"),
        (lambda: probe.read(0), "workers=0"),
        (lambda: probe.read(1, -0.5), "seconds="),
    ):
        with pytest.raises(ValueError, match=message):
            bad()
    with pytest.raises(TypeError):
        probe.compute("int8", ok[:32], ok)
